# Headers only: nothing of CUDA is linked. Each set is looked for in -D<NAME>_INCLUDE_DIR and then in NVIDIA's wheels.
function(jcc_cuda_headers variable header wheel)
  if(NOT ${variable})
    jcc_folder(${variable} "find('${wheel}', '${header}')")
  endif()
  if(NOT EXISTS ${${variable}}/${header})
    message(FATAL_ERROR "${header} was not found. One of these helps:\n"
      "  its wheel: pip install ${wheel}\n"
      "  your own:  pip install . -Ccmake.define.${variable}=<folder of ${header}>\n"
      "  none:      pip install . -Ccmake.define.JAX_CUDNN_CONV_CUDNN=OFF")
  endif()
  set(${variable} ${${variable}} PARENT_SCOPE)
endfunction()

# The wheels that hold cuDNN's headers ask pip for cuBLAS, half a gigabyte that no build needs, so they are not among
# the requirements in pyproject.toml: the smallest is downloaded without what it asks for.
if(NOT CUDNN_INCLUDE_DIR)
  set(wheel nvidia-cudnn-jit-cu13==9.27.0.42)
  set(folder ${CMAKE_BINARY_DIR}/cudnn_headers)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -m pip download -q --no-deps --only-binary=:all: -d ${folder} ${wheel}
    ERROR_VARIABLE CUDNN_DOWNLOAD_ERROR)
  file(GLOB archive ${folder}/*.whl)
  if(archive)
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} PATTERNS "*/include/*")
    set(CUDNN_INCLUDE_DIR ${folder}/nvidia/cudnn_jit/include)
  else()
    message(WARNING "${wheel} could not be downloaded:\n${CUDNN_DOWNLOAD_ERROR}")
  endif()
endif()
jcc_cuda_headers(CUDNN_INCLUDE_DIR cudnn.h nvidia-cudnn-cu13)
jcc_cuda_headers(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h nvidia-cudnn-frontend)
jcc_cuda_headers(CUDA_INCLUDE_DIR cuda_runtime.h nvidia-cuda-runtime)

jcc_add_module(_cudnn
  csrc/cudnn/conv.cc
  csrc/cudnn/device.cc
  csrc/cudnn/graph.cc
  csrc/cudnn/library.cc
  csrc/cudnn/module.cc
  csrc/cudnn/tune.cc)
target_include_directories(_cudnn SYSTEM PRIVATE
  ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR} ${CUDA_INCLUDE_DIR} ${CUDA_INCLUDE_DIR}/cccl
  csrc/cudnn/stand_in)
target_compile_definitions(_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
target_link_libraries(_cudnn PRIVATE ${CMAKE_DL_LIBS})
# Planning is all it does, so a build in half the time is worth more than its speed.
set_source_files_properties(csrc/cudnn/graph.cc PROPERTIES COMPILE_OPTIONS -O1)
