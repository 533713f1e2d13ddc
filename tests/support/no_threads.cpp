#include "tests/support/no_threads.h"

#ifdef GRADWIRE_TEST_NO_THREADS

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace gradwire::test {
namespace {

thread_local int refusals = 0;

}  // namespace

NoThreads::NoThreads() {
  ++refusals;
}

NoThreads::~NoThreads() {
  --refusals;
}

}  // namespace gradwire::test

// Takes the place of the C library's for everything in this process.
extern "C" int pthread_create(
    pthread_t* thread,
    const pthread_attr_t* attributes,
    void* (*start)(void*),
    void* argument) {
  if (gradwire::test::refusals > 0) {
    return EAGAIN;
  }
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(
      dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, start, argument);
}

#endif
