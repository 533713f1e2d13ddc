#pragma once

#include <filesystem>
#include <string>

namespace gradwire {

// Each throws Error that names the path and the reason.

// Makes `folder` if need be and checks that files can be made in it.
void check_writable_folder(const std::filesystem::path& folder);
// Checks that `file` can be written, without changing it.
void check_writable_file(const std::filesystem::path& file);

// The content of `file`.
std::string read_whole(const std::filesystem::path& file);

// Replaces `file` as a whole: after a crash at any moment there is either the
// old content or the new one. The data is on the disk when this returns.
void write_atomically(
    const std::filesystem::path& file, const std::string& content);

}  // namespace gradwire
