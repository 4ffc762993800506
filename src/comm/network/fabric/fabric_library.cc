#include "comm/network/fabric/fabric_library.h"

#include <dlfcn.h>
#include <rdma/fi_errno.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "comm/network/fabric/fabric_choice.h"

namespace tessera {
namespace {

constexpr const char* kLibraryName = "libfabric.so.1";

// Set unless the user has set them.
constexpr std::pair<const char*, const char*> kVariables[] = {
    // Processes with registered memory may fork.
    {"FI_EFA_FORK_SAFE", "1"},
    {"RDMAV_FORK_SAFE", "1"},
    // Memory is registered by its owner: nothing has to watch the allocator.
    {"FI_MR_CACHE_MONITOR", "disabled"},
    {"IPATH_NO_BACKTRACE", "1"},
    {"HFI_NO_BACKTRACE", "1"},
    // By default ofi_rxm has 5,000 bounce buffers of 16 KiB, 80 MiB an endpoint; only headers use them.
    {"FI_OFI_RXM_BUFFER_SIZE", "2048"},
    {"FI_OFI_RXM_MSG_RX_SIZE", "256"},
    // Over TCP, larger messages go as they are, without asking first: they are always awaited.
    {"FI_OFI_RXM_EAGER_LIMIT", "1048576"},
};

// Restores what loading changes: libraries of PSM install handlers for SIGSEGV, SIGTERM and others.
class KeptSignalHandlers {
 public:
  KeptSignalHandlers() {
    for (size_t i = 1; i < actions_.size(); ++i) {
      known_[i] = ::sigaction(static_cast<int>(i), nullptr, &actions_[i]) == 0;
    }
  }
  ~KeptSignalHandlers() {
    for (size_t i = 1; i < actions_.size(); ++i) {
      if (known_[i]) ::sigaction(static_cast<int>(i), &actions_[i], nullptr);
    }
  }

 private:
  std::array<struct sigaction, 32> actions_{};  // real-time signals have no owner by default
  std::array<bool, 32> known_{};
};

struct LoadedLibrary {
  std::string problem = {};
  FabricLibrary functions = {};
};

template <typename Function>
void find_function(void* library, const char* name, Function* function, std::string* problem) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  if (*function == nullptr) *problem = fmt::format("{} has no function {}", kLibraryName, name);
}

LoadedLibrary load_library() {
  for (const auto& [name, value] : kVariables) ::setenv(name, value, 0);
  const KeptSignalHandlers kept;
  LoadedLibrary loaded;
  // Never unloaded: it registers destructors of its own.
  void* const library = ::dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.problem = ::dlerror();
    return loaded;
  }
  FabricLibrary& functions = loaded.functions;
  find_function(library, "fi_getinfo", &functions.getinfo, &loaded.problem);
  find_function(library, "fi_freeinfo", &functions.freeinfo, &loaded.problem);
  find_function(library, "fi_dupinfo", &functions.dupinfo, &loaded.problem);
  find_function(library, "fi_fabric", &functions.fabric, &loaded.problem);
  find_function(library, "fi_strerror", &functions.strerror, &loaded.problem);
  find_function(library, "fi_version", &functions.version, &loaded.problem);
  if (!loaded.problem.empty()) return loaded;
  // The providers are initialised by the first question.
  fi_info* found = nullptr;
  if (functions.getinfo(kFabricVersion, nullptr, nullptr, 0, nullptr, &found) == 0) functions.freeinfo(found);
  return loaded;
}

const LoadedLibrary& loaded_library() {
  static const LoadedLibrary loaded = load_library();
  return loaded;
}

}  // namespace

const FabricLibrary& FabricLibrary::get() {
  const LoadedLibrary& loaded = loaded_library();
  if (!loaded.problem.empty()) {
    fail(ExitCode::kBadConfig,
         "--fabric needs libfabric, which cannot be loaded ({}): install Debian's package libfabric1, or use "
         "--fabric tcp",
         loaded.problem);
  }
  return loaded.functions;
}

bool FabricLibrary::is_installed() { return loaded_library().problem.empty(); }

FabricInfo find_fabrics(const std::string& provider, const std::string& local_address) {
  const FabricLibrary& library = FabricLibrary::get();
  const FabricInfo hints(library.dupinfo(nullptr));
  if (!hints) throw std::bad_alloc();
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (!fabric_moves_in_calls_only(provider)) hints->domain_attr->mr_mode |= FI_MR_LOCAL;
  // Freed with the hints.
  if (!provider.empty()) hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  const bool by_ip = !local_address.empty() && is_fabric_addressed_by_ip(provider);
  fi_info* found = nullptr;
  const int error = library.getinfo(kFabricVersion, by_ip ? local_address.c_str() : nullptr, nullptr,
                                    by_ip ? FI_SOURCE : 0, hints.get(), &found);
  return FabricInfo(error == 0 ? found : nullptr);
}

std::string fabric_error(int64_t error) {
  const int code = static_cast<int>(error < 0 ? -error : error);
  return fmt::format("{} ({})", FabricLibrary::get().strerror(code), code);
}

}  // namespace tessera
