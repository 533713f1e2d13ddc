#include "gradwire/comm/agreement.h"

#include <torch/version.h>

#include <algorithm>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/version.h"
#include "gradwire/comm/agreement_impl.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLinger = std::chrono::seconds(5);
constexpr char kFieldEnd = '\x1f';

// Texts can be long (every parameter of a model), so ranks read each other's
// fingerprints and fetch a text only to explain a difference.
std::string to_text(
    const std::string& subject, const std::vector<Fact>& facts) {
  std::string text = concat("the call", kFieldEnd, subject, kFieldEnd);
  for (const auto& fact : facts) {
    text += concat(fact.name, kFieldEnd, fact.value, kFieldEnd);
  }
  return text;
}

// Of a text that a peer has written: whatever it is, this ends.
std::vector<std::string> fields(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream rest(text);
  for (std::string field; std::getline(rest, field, kFieldEnd);) {
    result.push_back(field);
  }
  return result;
}

class Board {
  template <class Operation>
  auto asking(const Operation& operation) {
    try {
      return operation();
    } catch (const std::exception& e) {
      fail_waiting(
          concat("the other ranks could not be asked: ", first_line(e.what())));
    }
  }

 public:
  Board(
      c10d::Store& store,
      std::string prefix,
      const Origin& origin,
      std::chrono::milliseconds timeout,
      const std::string& subject)
      : store_(store),
        prefix_(std::move(prefix)),
        origin_(origin),
        timeout_(timeout),
        until_(Clock::now() + timeout),
        subject_(subject) {}

  void publish(const std::string& text) {
    asking([&] {
      put(key(origin_.rank, "text"), text);
      put(key(origin_.rank, "print"), concat(fingerprint(text)));
    });
  }

  std::string read(int rank, const char* what) {
    const std::string name = key(rank, what);
    if (!asking([&] { return wait_for_keys(store_, {name}, until_); })) {
      fail_waiting(concat(
          "rank ",
          rank,
          " did not arrive within ",
          static_cast<double>(timeout_.count()) / 1000.0,
          " s"));
    }
    const auto bytes = asking([&] { return store_.get(name); });
    return {bytes.begin(), bytes.end()};
  }

  // Holds this rank until those that are here have read everything: it may
  // serve the store and is about to throw.
  void linger() {
    const auto until =
        Clock::now() + std::min<Clock::duration>(timeout_, kLinger);
    try {
      put(key(origin_.rank, "left"), "");
      for (int rank = 0; rank < origin_.world; ++rank) {
        if (store_.check({key(rank, "print")})) {
          wait_for_keys(store_, {key(rank, "left")}, until);
        }
      }
    } catch (const std::exception&) {
      // Gone already: the error that is about to be thrown matters more.
    }
  }

 private:
  std::string key(int rank, const char* what) const {
    return concat(prefix_, "/", rank, "/", what);
  }
  void put(const std::string& name, const std::string& value) {
    store_.set(name, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  [[noreturn]] void fail_waiting(const std::string& what) const {
    throw CommError(
        concat("[gradwire.comm] ", subject_, ": ", what),
        {.rank = origin_.rank, .group = origin_.group});
  }

  c10d::Store& store_;
  std::string prefix_;
  const Origin& origin_;
  std::chrono::milliseconds timeout_;
  Clock::time_point until_;
  const std::string& subject_;
};

[[noreturn]] void explain(
    const std::string& subject,
    int other,
    const std::string& text0,
    const std::string& text1) {
  auto ours = fields(text0);
  auto theirs = fields(text1);
  const std::size_t length = std::max(ours.size(), theirs.size());
  ours.resize(length, "(nothing)");
  theirs.resize(length, "(nothing)");
  for (std::size_t i = 0; i + 1 < length; i += 2) {
    if (ours[i] != theirs[i]) {
      fail(
          "comm",
          "ranks do not agree on ",
          subject,
          ": rank 0 has ",
          ours[i],
          " where rank ",
          other,
          " has ",
          theirs[i]);
    }
    if (ours[i + 1] != theirs[i + 1]) {
      fail(
          "comm",
          "ranks do not agree on ",
          subject,
          ": ",
          ours[i],
          " is '",
          ours[i + 1],
          "' on rank 0 but '",
          theirs[i + 1],
          "' on rank ",
          other);
    }
  }
  fail("comm", "ranks 0 and ", other, " do not agree on ", subject);
}

}  // namespace

std::vector<Fact> library_facts() {
  return {
      {"version of gradwire", version()}, {"version of Torch", TORCH_VERSION}};
}

void agree_through(
    c10d::Store& store,
    const std::string& prefix,
    const Origin& origin,
    std::chrono::milliseconds timeout,
    const std::string& subject,
    const std::vector<Fact>& facts) {
  Board board(store, prefix, origin, timeout, subject);
  board.publish(to_text(subject, facts));
  const std::string print0 = board.read(0, "print");
  for (int rank = 1; rank < origin.world; ++rank) {
    if (board.read(rank, "print") != print0) {
      const std::string first = board.read(0, "text");
      const std::string other = board.read(rank, "text");
      board.linger();
      explain(subject, rank, first, other);
    }
  }
}

void agree_checked_through(
    c10d::Store& store,
    const std::string& prefix,
    const Origin& origin,
    std::chrono::milliseconds timeout,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts) {
  constexpr const char* kCheck = "local check";
  std::exception_ptr failure;
  std::vector<Fact> facts;
  try {
    facts = find_facts();
    facts.insert(facts.begin(), {kCheck, "passed"});
  } catch (const std::exception& e) {
    failure = std::current_exception();
    facts = {{kCheck, e.what()}};
  }
  agree_through(store, prefix, origin, timeout, subject, facts);
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void agree(
    const Group& group,
    const std::string& subject,
    const std::vector<Fact>& facts) {
  auto& impl = group.impl();
  agree_through(
      *impl.store,
      concat("agree/", impl.agreements++),
      impl.origin,
      impl.options.timeout,
      subject,
      facts);
}

std::string share(
    const Group& group, const std::string& subject, const std::string& text) {
  auto& impl = group.impl();
  Board board(
      *impl.store,
      concat("agree/", impl.agreements++),
      impl.origin,
      impl.options.timeout,
      subject);
  if (group.rank() == 0) {
    board.publish(text);
  }
  return board.read(0, "text");
}

void agree_checked(
    const Group& group,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts) {
  auto& impl = group.impl();
  agree_checked_through(
      *impl.store,
      concat("agree/", impl.agreements++),
      impl.origin,
      impl.options.timeout,
      subject,
      find_facts);
}

}  // namespace gradwire
