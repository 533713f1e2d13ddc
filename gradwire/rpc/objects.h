#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>

#include "gradwire/rpc/reply.h"
#include "gradwire/rpc/rpc.h"

// Handles of objects with their types forgotten: what Remote<T> is made of.
namespace gradwire::rpc {

// One hold on an object, released when it is destroyed.
class ObjectHold {
 public:
  ObjectHold(int owner, std::int64_t object, std::int64_t hold);
  ~ObjectHold();
  ObjectHold(const ObjectHold&) = delete;

  int owner() const {
    return owner_;
  }
  std::int64_t object() const {
    return object_;
  }
  std::int64_t hold() const {
    return hold_;
  }

 private:
  int owner_;
  std::int64_t object_;
  std::int64_t hold_;
};
using HoldPtr = std::shared_ptr<const ObjectHold>;

namespace detail {

// Makes this worker the owner of an object of the given type.
HoldPtr add_object(
    std::shared_ptr<void> value, const std::string& type, std::type_index id);
// On its owner. The object lives at least as long as the result. Throws Error
// if it is gone or of another type.
std::shared_ptr<void> local_object(
    std::int64_t object, const std::string& type, std::type_index id);

// A handle in a message has a hold of its own, which then belongs to the
// receiver. Waits for the owner to add it, unless this is the owner.
c10::IValue pack_hold(const ObjectHold& hold);
HoldPtr unpack_hold(const c10::IValue& packed, const std::string& type);

// Names of classes and their methods, by C++ type. Throws Error for a type that
// has a name already, and for a name that belongs to another type.
void name_type(std::type_index type, const std::string& name);
std::optional<std::string> name_of_type(std::type_index type);

}  // namespace detail

// Objects that this worker owns for others.
std::size_t owned_objects();

}  // namespace gradwire::rpc
