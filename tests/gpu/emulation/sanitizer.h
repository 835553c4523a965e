// Whether this is compiled for the address sanitizer, of GCC or Clang.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define MOECCL_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOECCL_ADDRESS_SANITIZER
#endif
#endif
