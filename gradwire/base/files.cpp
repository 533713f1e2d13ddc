#include "gradwire/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "gradwire/base/error.h"
#include "gradwire/base/fd.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_on(const char* what, const fs::path& path) {
  fail("base", "cannot ", what, " '", path.string(), "': ", error_text(errno));
}

void sync_folder(const fs::path& folder) {
  const Fd handle(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle || fsync(handle.get()) != 0) {
    fail_on("sync", folder);
  }
}

void write_all(
    const Fd& handle, const fs::path& file, const std::string& content) {
  if (!handle) {
    fail_on("write", file);
  }
  for (std::size_t done = 0; done < content.size();) {
    const auto count =
        write(handle.get(), content.data() + done, content.size() - done);
    if (count < 0 && errno != EINTR) {
      fail_on("write", file);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

void check_writable_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code || !fs::is_directory(folder)) {
    fail(
        "base",
        "cannot make the folder '",
        folder.string(),
        "': ",
        code ? code.message() : "there is a file of that name");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    fail_on("write into", folder);
  }
}

void check_writable_file(const fs::path& file) {
  if (fs::is_directory(file)) {
    fail("base", "cannot write '", file.string(), "': it is a folder");
  }
  const bool existed = fs::exists(file);
  const Fd handle(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!handle) {
    fail_on("write", file);
  }
  if (!existed) {
    fs::remove(file);
  }
}

std::string read_whole(const fs::path& file) {
  const Fd handle(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (!handle || fstat(handle.get(), &facts) != 0) {
    fail_on("read", file);
  }
  std::string content;
  content.reserve(static_cast<std::size_t>(facts.st_size) + 1);
  for (;;) {
    const std::size_t done = content.size();
    content.resize(std::max(content.capacity(), done + 1));
    const auto count =
        read(handle.get(), content.data() + done, content.size() - done);
    if (count < 0 && errno != EINTR) {
      fail_on("read", file);
    }
    content.resize(
        done + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) {
      return content;
    }
  }
}

void write_atomically(const fs::path& path, const std::string& content) {
  // A link stays a link, and a device or pipe has no content to replace.
  const fs::path file =
      fs::is_symlink(path) && fs::exists(path) ? fs::canonical(path) : path;
  if (fs::exists(file) && !fs::is_regular_file(file)) {
    const Fd handle(open(file.c_str(), O_WRONLY | O_CLOEXEC));
    write_all(handle, file, content);
    return;
  }
  const fs::path draft = file.string() + ".draft";
  {
    const Fd handle(
        open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    write_all(handle, draft, content);
    if (fsync(handle.get()) != 0) {
      fail_on("sync", draft);
    }
  }
  if (std::rename(draft.c_str(), file.c_str()) != 0) {
    fail_on("replace", file);
  }
  sync_folder(folder_of(file));
}

}  // namespace gradwire
