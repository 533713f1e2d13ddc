#include "gradwire/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "gradwire/base/error.h"

extern char** environ;

namespace gradwire::launch {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (auto& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

// Everything the child needs between fork and exec, made ready before the
// fork: afterwards only async-signal-safe calls are allowed.
struct Prepared {
  explicit Prepared(const ChildOptions& options) : words(options.command) {
    for (const auto& [name, value] : options.environment) {
      settings.push_back(concat(name, "=", value));
    }
    argv = pointers(words);
    envp = pointers(settings);
  }
  std::vector<std::string> words;
  std::vector<std::string> settings;
  std::vector<char*> argv;
  std::vector<char*> envp;
};

[[noreturn]] void become(
    const Prepared& prepared,
    const ChildOptions& options,
    int null_fd,
    int report_fd,
    pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(127);
  }
  dup2(options.in >= 0 ? options.in : null_fd, STDIN_FILENO);
  if (options.out >= 0) {
    dup2(options.out, STDOUT_FILENO);
  }
  if (options.err >= 0) {
    dup2(options.err, STDERR_FILENO);
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execvpe(prepared.argv[0], prepared.argv.data(), prepared.envp.data());
  const int code = errno;
  [[maybe_unused]] const auto told = write(report_fd, &code, sizeof code);
  _exit(127);
}

}  // namespace

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    fail("launch", "cannot make a pipe: ", error_text(errno));
  }
  read = Fd(ends[0]);
  write = Fd(ends[1]);
}

pid_t start_child(const ChildOptions& options) {
  const Prepared prepared(options);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe report;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    fail("launch", "cannot start a process: ", error_text(errno));
  }
  if (pid == 0) {
    become(prepared, options, null.get(), report.write.get(), parent);
  }
  setpgid(pid, pid);  // also here: a signal may be sent before the child runs
  report.write.reset();
  int code = 0;
  if (read(report.read.get(), &code, sizeof code) == sizeof code) {
    waitpid(pid, nullptr, 0);
    fail(
        "launch",
        "cannot run '",
        options.command.at(0),
        "': ",
        error_text(code));
  }
  return pid;
}

std::map<std::string, std::string> inherited_environment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) {
      result[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return result;
}

}  // namespace gradwire::launch
