#pragma once

// What a fuzzer says before it stops.
[[noreturn]] inline void fault(const char* what) {
  __builtin_printf("gradwire fuzz: %s\n", what);
  __builtin_trap();
}

inline void require(bool condition, const char* what) {
  if (!condition) {
    fault(what);
  }
}
