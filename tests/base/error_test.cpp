#include "gradwire/base/error.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace gradwire {
namespace {

[[noreturn]] void rethrow(const std::exception_ptr& error) {
  std::rethrow_exception(error);
}

TEST(Error, SaysItsPlaceOnceWhateverLayersAdd) {
  auto error = std::make_exception_ptr(Error("[gradwire.comm] lost"));
  error = with_place<CommError>(error, {.rank = 1, .phase = "all-gather"});
  error = with_place<CommError>(
      error, {.rank = 7, .hook = "int8", .bucket = 0, .phase = "other"});
  error = with_place<CommError>(error, {.peer = "rank 2 does not answer"});
  try {
    rethrow(error);
  } catch (const CommError& e) {
    EXPECT_STREQ(
        e.what(),
        "[gradwire.comm] lost (rank 1, hook int8, bucket 0, phase all-gather; "
        "rank 2 does not answer)");
    EXPECT_EQ(e.message(), "[gradwire.comm] lost");
    EXPECT_EQ(e.place().bucket, 0);
  }
}

TEST(Error, NothingKnownSaysNothing) {
  EXPECT_EQ(to_string(Place{}), "");
  EXPECT_STREQ(Error("[gradwire.base] so").what(), "[gradwire.base] so");
  EXPECT_EQ(
      to_string({.group = "world", .peer = "rank 2 left"}),
      "(group 'world'; rank 2 left)");
  EXPECT_EQ(to_string({.peer = "rank 2 left"}), "(rank 2 left)");
}

TEST(Error, OthersBecomeTheKindThatIsAskedFor) {
  EXPECT_ERROR(
      CommError,
      rethrow(with_place<CommError>(
          std::make_exception_ptr(std::out_of_range("far")), {.rank = 3})),
      "far (rank 3)");
  EXPECT_ERROR(
      Error,
      rethrow(with_place<Error>(std::make_exception_ptr(42), {.rank = 3})),
      "something unknown was thrown (rank 3)");
}

}  // namespace
}  // namespace gradwire
