#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::launch {

// Owns a file descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() {
    reset();
  }
  int get() const {
    return fd_;
  }
  explicit operator bool() const {
    return fd_ >= 0;
  }
  int release() {
    return std::exchange(fd_, -1);
  }
  void reset();

 private:
  int fd_;
};

// A pipe whose both ends close on exec. Throws Error.
struct Pipe {
  Pipe();
  Fd read;
  Fd write;
};

struct ChildOptions {
  std::vector<std::string> command;
  // The whole environment of the child.
  std::map<std::string, std::string> environment;
  // The descriptor the child reads as its input; -1: it has none.
  int in = -1;
  // Descriptors the child gets as its output; -1: inherits this process's.
  int out = -1;
  int err = -1;
};

// Starts a process in a process group of its own that the kernel kills when
// this process dies. Throws Error when the program
// cannot be run.
pid_t start_child(const ChildOptions& options);

// This process's environment as a map.
std::map<std::string, std::string> inherited_environment();

}  // namespace gradwire::launch
