#include "gradwire/base/spec.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace gradwire {
namespace {

TEST(Spec, NameOptionsAndInner) {
  const Spec spec = parse_spec(" bf16( powersgd : rank=4 , start=10 ) ");
  EXPECT_EQ(spec.name, "bf16");
  ASSERT_TRUE(spec.inner);
  EXPECT_EQ(spec.inner->name, "powersgd");
  EXPECT_EQ(spec.inner->options.at("rank"), "4");
  EXPECT_EQ(spec.inner->options.at("start"), "10");
}

TEST(Spec, CanonicalTextSortsOptions) {
  EXPECT_EQ(to_string(parse_spec("w(x:b=2, a=1) : z=0")), "w(x:a=1,b=2):z=0");
}

TEST(Spec, ErrorsPointAtThePlace) {
  EXPECT_ERROR(Error, parse_spec(""), "expected a name at position 1");
  EXPECT_ERROR(Error, parse_spec("a(b"), "unbalanced '('", "position 4");
  EXPECT_ERROR(Error, parse_spec("a)"), "unbalanced ')'", "position 2");
  EXPECT_ERROR(Error, parse_spec("a()"), "expected a name at position 3");
  EXPECT_ERROR(Error, parse_spec("a:b"), "expected '='", "option 'b'");
  EXPECT_ERROR(Error, parse_spec("a:b="), "expected a value for option 'b'");
  EXPECT_ERROR(Error, parse_spec("a:b=1,b=2"), "'b' is given twice");
  EXPECT_ERROR(Error, parse_spec("a:b=1,"), "expected an option name");
  EXPECT_ERROR(Error, parse_spec("a b"), "unexpected 'b' at position 3");
  EXPECT_ERROR(Error, parse_spec("a;"), "[gradwire.hook] spec 'a;'");
}

}  // namespace
}  // namespace gradwire
