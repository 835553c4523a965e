// How a kernel's loops become wide vector instructions where the CPU has them.
#pragma once

namespace moeccl {

#ifdef __x86_64__
template <typename Kernel, typename... Arguments>
[[gnu::target("avx2,fma")]] void runAvx2(Arguments... arguments) {
  Kernel::run(arguments...);
}
#endif

// Kernel::run(arguments...), with vectors twice as wide as those that every x86-64 has, and with
// fused multiply-add. Kernel::run, and all that it calls in its loops, must be
// [[gnu::always_inline]].
template <typename Kernel, typename... Arguments>
void runWide(Arguments... arguments) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return runAvx2<Kernel>(arguments...);
#endif
  Kernel::run(arguments...);
}

}  // namespace moeccl
