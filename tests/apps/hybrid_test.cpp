#include <gtest/gtest.h>

#include "tests/support/command.h"

namespace gradwire::test {
namespace {

double loss_in(const std::string& output) {
  const auto at = output.find("loss ");
  return at == std::string::npos ? -1 : std::stod(output.substr(at + 5));
}

// Trainers in step, one averaged update of the embeddings: what one process
// would do.
TEST(Hybrid, ManyWorkersLearnWhatOneProcessDoes) {
  const std::string program = GRADWIRE_EXAMPLES "/hybrid_recommender";
  const auto alone = command(program);
  ASSERT_EQ(alone.code, 0) << alone.output;
  for (const char* roles :
       {"--role trainer=2 --role embedding=2",
        "--role trainer=4 --role embedding=1"}) {
    const auto together =
        command(concat(GRADWIRE_CLI " run ", roles, " -- ", program));
    ASSERT_EQ(together.code, 0) << together.output;
    EXPECT_NEAR(loss_in(together.output), loss_in(alone.output), 1e-4) << roles;
  }
}

}  // namespace
}  // namespace gradwire::test
