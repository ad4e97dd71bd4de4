// A stand-in for cuBLASLt, libcublasLt.so.12 and .13: cuDNN's library of precompiled engines looks these names up
// when it is loaded and ends the process where it finds none. Planning a convolution calls no more than the version.

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef CUBLASLT_MAJOR
#define CUBLASLT_MAJOR 13
#endif

enum { kSuccess = 0, kNotInitialized = 1 };

EXPORT size_t cublasLtGetVersion(void) { return CUBLASLT_MAJOR * 10000; }

EXPORT int cublasLtGetProperty(int property, int* value) {
  *value = property == 0 ? CUBLASLT_MAJOR : 0;  // 0: MAJOR_VERSION
  return kSuccess;
}

#define UNUSABLE(name) \
  EXPORT int name(void) { return kNotInitialized; }

UNUSABLE(cublasLtCreate)
UNUSABLE(cublasLtDestroy)
UNUSABLE(cublasLtGroupedMatrixLayoutCreate)
UNUSABLE(cublasLtMatmul)
UNUSABLE(cublasLtMatmulAlgoGetHeuristic)
UNUSABLE(cublasLtMatmulDescCreate)
UNUSABLE(cublasLtMatmulDescDestroy)
UNUSABLE(cublasLtMatmulDescGetAttribute)
UNUSABLE(cublasLtMatmulDescSetAttribute)
UNUSABLE(cublasLtMatmulPreferenceCreate)
UNUSABLE(cublasLtMatmulPreferenceDestroy)
UNUSABLE(cublasLtMatmulPreferenceSetAttribute)
UNUSABLE(cublasLtMatrixLayoutCreate)
UNUSABLE(cublasLtMatrixLayoutDestroy)
UNUSABLE(cublasLtMatrixLayoutGetAttribute)
UNUSABLE(cublasLtMatrixLayoutSetAttribute)
UNUSABLE(cublasLtMatrixTransform)
UNUSABLE(cublasLtMatrixTransformDescCreate)
UNUSABLE(cublasLtMatrixTransformDescDestroy)
UNUSABLE(cublasLtMatrixTransformDescGetAttribute)
UNUSABLE(cublasLtMatrixTransformDescSetAttribute)
