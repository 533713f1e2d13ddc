#pragma once

// Private to rpc: the functions this worker serves.

#include <string>

#include "gradwire/rpc/functions.h"

namespace gradwire::rpc {

constexpr const char* kOwnNames = "gradwire.";

// A function of gradwire's own, under kOwnNames + name.
void add_own_function(const std::string& name, Function function);

// Letters, digits, '_' and single dots in between.
bool is_function_name(const std::string& name);

// Null if there is none of this name. Stays valid.
const Function* find_function(const std::string& name);

// For the error that says there is none.
std::string known_functions();

}  // namespace gradwire::rpc
