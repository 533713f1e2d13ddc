#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/base/error.h"

// Expects `statement` to throw `Type` with a text that contains each part.
#define EXPECT_ERROR(Type, statement, ...) \
  ::gradwire::test::expect_error<Type>(    \
      [&] { statement; }, {__VA_ARGS__}, #statement, __FILE__, __LINE__)

namespace gradwire::test {

template <class Type, class F>
void expect_error(
    const F& f,
    const std::vector<std::string>& parts,
    const char* what,
    const char* file,
    int line) {
  try {
    f();
    ADD_FAILURE_AT(file, line) << what << " did not throw";
  } catch (const Type& e) {
    const std::string text = e.what();
    for (const auto& part : parts) {
      if (text.find(part) == std::string::npos) {
        ADD_FAILURE_AT(file, line)
            << what << " threw\n  " << text << "\nwithout\n  " << part;
      }
    }
  } catch (const std::exception& e) {
    ADD_FAILURE_AT(file, line) << what << " threw another type: " << e.what();
  }
}

}  // namespace gradwire::test
