#include "gradwire/comm/agreement.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

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

std::vector<std::string> fields(const std::string& text) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find(kFieldEnd, begin);
    result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

class Board {
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
        subject_(subject) {}

  void publish(const std::string& text) {
    put(key(origin_.rank, "text"), text);
    put(key(origin_.rank, "print"), concat(fingerprint(text)));
  }

  std::string read(int rank, const char* what) {
    const std::string name = key(rank, what);
    const auto started = Clock::now();
    try {
      store_.wait({name}, timeout_);
      const auto bytes = store_.get(name);
      return {bytes.begin(), bytes.end()};
    } catch (const std::exception& e) {
      const bool late = Clock::now() - started >= timeout_;
      throw CommError(concat(
          "[gradwire.comm] ",
          subject_,
          ": rank ",
          rank,
          late ? concat(
                     " did not arrive within ", timeout_.count() / 1000.0, " s")
               : " could not be asked, the store is lost",
          " (rank ",
          origin_.rank,
          " of ",
          origin_.world,
          " waited on group '",
          origin_.group,
          "'): ",
          first_line(e.what())));
    }
  }

  // Holds this rank until those that are here have read everything: it may
  // serve the store and is about to throw.
  void linger() {
    put(key(origin_.rank, "left"), "");
    const auto until =
        Clock::now() + std::min<Clock::duration>(timeout_, kLinger);
    for (int rank = 0; rank < origin_.world; ++rank) {
      try {
        if (store_.check({key(rank, "print")})) {
          const auto left =
              std::chrono::duration_cast<Milliseconds>(until - Clock::now());
          store_.wait({key(rank, "left")}, std::max(left, Milliseconds(1)));
        }
      } catch (const std::exception&) {
        return;  // gone already, or too slow: the error matters more
      }
    }
  }

 private:
  std::string key(int rank, const char* what) const {
    return concat(prefix_, "/", rank, "/", what);
  }
  void put(const std::string& name, const std::string& value) {
    store_.set(name, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  c10d::Store& store_;
  std::string prefix_;
  const Origin& origin_;
  std::chrono::milliseconds timeout_;
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
