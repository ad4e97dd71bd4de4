jcc_folder(WHEEL_dnnl_DIR "find('onednn-devel-cpu-tbb', 'dnnl-config.cmake')")
if(NOT dnnl_DIR AND WHEEL_dnnl_DIR)
  set(dnnl_DIR ${WHEEL_dnnl_DIR})
  jcc_folder(TBB_DIR "find('tbb-devel', 'TBBConfig.cmake')")
endif()
find_package(dnnl 3 CONFIG)
if(NOT dnnl_FOUND)
  message(FATAL_ERROR "oneDNN 3 was not found. One of these helps:\n"
    "  its wheels (x86_64 Linux): pip install onednn-devel-cpu-tbb==2023.2.0 'tbb-devel==2021.*'\n"
    "  your own:                  pip install . -Ccmake.define.dnnl_DIR=<folder of dnnl-config.cmake>\n"
    "  none:                      pip install . -Ccmake.define.JAX_CUDNN_CONV_ONEDNN=OFF")
endif()

jcc_add_module(_onednn
  csrc/scratch.cc
  csrc/strided_copy.cc
  csrc/onednn/conv.cc
  csrc/onednn/formulate.cc
  csrc/onednn/kernel.cc
  csrc/onednn/module.cc
  csrc/onednn/reduce.cc
  csrc/onednn/select.cc)
target_link_libraries(_onednn PRIVATE DNNL::dnnl)
if(DNNL_CPU_THREADING_RUNTIME STREQUAL "TBB")
  target_compile_definitions(_onednn PRIVATE JCC_TBB=1)
  target_link_libraries(_onednn PRIVATE TBB::tbb)
endif()
if(dnnl_DIR STREQUAL WHEEL_dnnl_DIR)
  set(ONEDNN_FROM_WHEELS True)  # _native.py looks for its libraries when it is imported
else()
  set_target_properties(_onednn PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # they stay where they are
endif()
