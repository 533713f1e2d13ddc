#pragma once

// Sanitizers have a pthread_create of their own, which none can take the place
// of: what uses this is left out there.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define GRADWIRE_TEST_NO_THREADS

namespace gradwire::test {

// While it lives, the calling thread can start no other.
class NoThreads {
 public:
  NoThreads();
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
};

}  // namespace gradwire::test

#endif
