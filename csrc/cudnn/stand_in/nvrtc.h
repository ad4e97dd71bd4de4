// The names of NVRTC that cudnn-frontend's headers mention for engines other than convolutions: declared so that they
// compile, defined nowhere and never called. The real header would cost every build a wheel of 58 MB.
#pragma once

typedef struct nvrtcStandIn* nvrtcProgram;
typedef enum { NVRTC_SUCCESS, NVRTC_COMPILATION_FAILED, NVRTC_ERROR_INTERNAL_ERROR } nvrtcResult;

extern "C" {
const char* nvrtcGetErrorString(nvrtcResult);
nvrtcResult nvrtcVersion(int*, int*);
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*);
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*);
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t*);
nvrtcResult nvrtcGetPTX(nvrtcProgram, char*);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*);
}
