#include "gradwire/hook/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/hook/choice.h"
#include "gradwire/hook/wrapper.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

// A wrapper with an option, as a program may register one.
class Scale : public HookWrapper {
 public:
  explicit Scale(HookContext context)
      : HookWrapper(context.make_inner(context.group)),
        factor_(context.options.number("factor")) {}
  Future reduce(Bucket& bucket) override {
    return inner().reduce(bucket).then(
        [factor = factor_](const at::Tensor& t) { return t * factor; });
  }

 private:
  double factor_;
};

void register_scale() {
  static const bool once = [] {
    register_hook(
        {.name = "scale",
         .summary = "multiplies",
         .make = [](HookContext context) -> std::unique_ptr<Hook> {
           return std::make_unique<Scale>(std::move(context));
         },
         .options =
             {{.name = "factor",
               .fallback = 2.0,
               .help = "what to multiply with",
               .least = 0}},
         .wraps = HookInfo::Wraps::kAlways});
    return true;
  }();
  (void)once;
}

TEST(Registry, BuiltInHooksComeFirst) {
  register_scale();
  const auto rows = hooks();
  const auto place = [&](const std::string& name) {
    const auto row = std::ranges::find(rows, name, &HookInfo::name);
    EXPECT_NE(row, rows.end()) << name;
    return row - rows.begin();
  };
  EXPECT_LT(place("allreduce"), place("fp16"));
  EXPECT_LT(place("fp16"), place("noop"));
  EXPECT_LT(place("noop"), place("scale"));
}

TEST(Registry, UnknownHookListsAndSuggests) {
  std::string known = "known are none";
  for (const HookInfo& info : hooks()) {
    known += ", " + info.name;
  }
  EXPECT_ERROR(
      Error,
      check_hook_spec("alreduce"),
      "[gradwire.hook] unknown hook 'alreduce'",
      known,
      "did you mean 'allreduce'?");
}

TEST(Registry, BadSpecsAreExplained) {
  register_scale();
  EXPECT_ERROR(
      Error, check_hook_spec("allreduce:rank=1"), "unknown option 'rank'");
  EXPECT_ERROR(Error, check_hook_spec("noop(allreduce)"), "takes no other");
  EXPECT_ERROR(Error, check_hook_spec("scale"), "expected scale(hook)");
  EXPECT_ERROR(Error, check_hook_spec("scale(noop):factor=-1"), "at least 0");
  EXPECT_ERROR(Error, check_hook_spec("scale(noop"), "unbalanced '('");
  EXPECT_ERROR(Error, check_hook_spec("scale(bla)"), "unknown hook 'bla'");
}

TEST(Registry, CanonicalSpec) {
  EXPECT_EQ(check_hook_spec(" none "), "none");
  EXPECT_EQ(check_hook_spec(" allreduce "), "allreduce");
  // However a hook is asked for, it is one hook.
  EXPECT_EQ(check_hook_spec("int8:block=512,ef=on"), "int8");
  EXPECT_EQ(
      check_hook_spec("int8:ef=on,block=tensor,min_elems=5"),
      "int8:block=tensor,min_elems=5");
  EXPECT_EQ(check_hook_spec("fp16(int8:rounding=nearest)"), "fp16(int8)");
}

TEST(Registry, UserHooksComposeWithBuiltInOnes) {
  register_scale();
  const auto hook = make_hook("scale(scale(noop)):factor=3", Group());
  Bucket bucket(0, true, torch::ones({4}), {});
  EXPECT_EQ(hook->reduce(bucket).wait().sum().item<float>(), 24);
}

TEST(Registry, NamesAreTakenOnce) {
  const auto make = [](HookContext) { return std::unique_ptr<Hook>(); };
  EXPECT_ERROR(
      Error,
      register_hook({.name = "noop", .summary = "", .make = make}),
      "'noop' is registered already");
  EXPECT_ERROR(
      Error,
      register_hook({.name = "none", .summary = "", .make = make}),
      "registered already");
  EXPECT_ERROR(
      Error,
      register_hook({.name = "a:b=1", .summary = "", .make = make}),
      "expected a plain name");
  EXPECT_ERROR(
      Error,
      register_hook({.name = "fresh", .summary = "", .make = {}}),
      "no way to make");
}

TEST(HookChoice, TextTellsChoicesApart) {
  EXPECT_TRUE(HookChoice().check().is_none());
  EXPECT_EQ(HookChoice("noop").check().text(), "noop");
  const HookChoice lambda(
      [](Bucket& bucket) { return Future::ready(bucket.buffer()); });
  EXPECT_EQ(lambda.check().text().substr(0, 7), "custom ");
  EXPECT_FALSE(lambda.check().is_none());
  EXPECT_ERROR(Error, HookChoice("").check(), "empty spec or a null hook");
  EXPECT_ERROR(Error, HookChoice(std::shared_ptr<Hook>()).check(), "null hook");
}

}  // namespace
}  // namespace gradwire
