// Sanitizers make tests many times slower, and see the same code in fewer and smaller cases. They
// also end a process where others throw std::bad_alloc.
#pragma once

// GCC defines macros, Clang answers questions.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOECCL_ADDRESS_SANITIZED 1
#elif __has_feature(thread_sanitizer)
#define MOECCL_THREAD_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define MOECCL_ADDRESS_SANITIZED 1
#elif defined(__SANITIZE_THREAD__)
#define MOECCL_THREAD_SANITIZED 1
#endif

#if defined(MOECCL_ADDRESS_SANITIZED) || defined(MOECCL_THREAD_SANITIZED)
#define MOECCL_SANITIZED 1
#endif

namespace moeccl {

#ifdef MOECCL_ADDRESS_SANITIZED
inline constexpr bool kAddressSanitized = true;
#else
inline constexpr bool kAddressSanitized = false;
#endif

#ifdef MOECCL_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace moeccl
