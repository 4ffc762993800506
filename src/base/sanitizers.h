// The sanitizers the program was built with; GCC and clang report them differently.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_ASAN
#elif defined(__SANITIZE_THREAD__)
#define TESSERA_TSAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_ASAN
#elif __has_feature(thread_sanitizer)
#define TESSERA_TSAN
#endif
#endif
