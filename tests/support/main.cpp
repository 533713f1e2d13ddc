// Of test programs whose tests call run_processes.

#include <gtest/gtest.h>

#include "tests/support/fork_ranks.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gradwire::test::start_template();
  return RUN_ALL_TESTS();
}
