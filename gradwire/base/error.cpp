#include "gradwire/base/error.h"

#include <vector>

namespace gradwire {
namespace {

void add_text(std::string& known, const std::string& more) {
  if (known.empty()) {
    known = more;
  }
}

// The message, and the place behind it.
std::string render(const std::string& message, const Place& place) {
  const std::string text = to_string(place);
  return text.empty() ? message : concat(message, " ", text);
}

}  // namespace

void Place::add(const Place& more) {
  rank = rank ? rank : more.rank;
  bucket = bucket ? bucket : more.bucket;
  add_text(group, more.group);
  add_text(hook, more.hook);
  add_text(phase, more.phase);
  add_text(peer, more.peer);
}

std::string to_string(const Place& place) {
  std::vector<std::string> parts;
  if (place.rank) {
    parts.push_back(concat("rank ", *place.rank));
  }
  if (!place.group.empty()) {
    parts.push_back(concat("group '", place.group, "'"));
  }
  if (!place.hook.empty()) {
    parts.push_back(concat("hook ", place.hook));
  }
  if (place.bucket) {
    parts.push_back(concat("bucket ", *place.bucket));
  }
  if (!place.phase.empty()) {
    parts.push_back(concat("phase ", place.phase));
  }
  std::string text = join(parts);
  if (!place.peer.empty()) {
    text += concat(text.empty() ? "" : "; ", place.peer);
  }
  return text.empty() ? text : concat("(", text, ")");
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

Error::Error(const std::string& message, const Place& place)
    : std::runtime_error(render(message, place)),
      parts_(std::make_shared<const Parts>(Parts{message, place})) {}

}  // namespace gradwire
