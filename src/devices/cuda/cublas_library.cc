#include "devices/cuda/cublas_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/error.h"

namespace tessera::cuda {
namespace {

constexpr const char* kLibraryName = "libcublasLt.so.13";

template <typename Function>
void find_function(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  if (*function == nullptr) {
    fail(ExitCode::kBadConfig, "device cuda: {} has no function {}", kLibraryName, name);
  }
}

CublasLibrary load_library() {
  // Never unloaded: it registers destructors of its own.
  void* const library = ::dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ExitCode::kBadConfig,
         "device cuda: {}; cuBLAS 13 must be where the loader finds it (LD_LIBRARY_PATH)", ::dlerror());
  }
  CublasLibrary functions = {};
#define TESSERA_FIND(name) find_function(library, "cublasLt" #name, &functions.name)
  TESSERA_FIND(Create);
  TESSERA_FIND(GetVersion);
  TESSERA_FIND(Matmul);
  TESSERA_FIND(MatmulDescCreate);
  TESSERA_FIND(MatmulDescSetAttribute);
  TESSERA_FIND(MatmulDescDestroy);
  TESSERA_FIND(MatrixLayoutCreate);
  TESSERA_FIND(MatrixLayoutDestroy);
  TESSERA_FIND(MatmulPreferenceCreate);
  TESSERA_FIND(MatmulPreferenceSetAttribute);
  TESSERA_FIND(MatmulPreferenceDestroy);
  TESSERA_FIND(MatmulAlgoGetHeuristic);
  TESSERA_FIND(GetStatusString);
#undef TESSERA_FIND
  return functions;
}

}  // namespace

const CublasLibrary& cublas_library() {
  static const CublasLibrary library = load_library();
  return library;
}

}  // namespace tessera::cuda
