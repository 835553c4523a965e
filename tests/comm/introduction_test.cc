// What ranks tell one another first, for those who read it on its way.
#include "src/comm/introduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "src/bootstrap/rendezvous.h"
#include "src/comm/settings.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kLong = 60'000;

// Keeps all that the all-gather carries.
class Overheard final : public Oob {
 public:
  Overheard(std::unique_ptr<Oob> inner, bool trusted)
      : inner_(std::move(inner)), trusted_(trusted) {}
  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    inner_->allgather(send, recv, bytes);
    const auto* const all = static_cast<const std::byte*>(recv);
    heard_.insert(heard_.end(), all, all + bytes * static_cast<std::size_t>(ranks()));
  }
  std::span<const std::byte> key() const override {
    return trusted_ ? std::span<const std::byte>() : inner_->key();
  }
  void finish() override { inner_->finish(); }
  bool heard(const Secret& secret) const {
    return std::search(heard_.begin(), heard_.end(), secret.begin(), secret.end()) != heard_.end();
  }

 private:
  std::unique_ptr<Oob> inner_;
  const bool trusted_;
  std::vector<std::byte> heard_;
};

// The secrets that ranks make in one job, and whether one was to be read.
struct Made {
  std::vector<Secret> secrets = std::vector<Secret>(kRanks);
  bool heard = false;
};

Made introduceAll(bool trusted) {
  const moecclUniqueId id = makeUniqueId();
  Made made;
  test::expectSuccess(test::runThreads(kRanks, [&](int rank) {
    Overheard oob(join(id, kRanks, rank, kLong), trusted);
    const Introduction introduction = introduce(oob, Settings{});
    made.secrets[static_cast<std::size_t>(rank)] = introduction.secret;
    EXPECT_EQ(introduction.watch->secret(), introduction.secret);
    if (rank == 0) made.heard = oob.heard(introduction.secret);
    exchangeValue(oob, rank);  // nobody leaves before all have come here
    oob.finish();
  }));
  EXPECT_EQ(std::ranges::count(made.secrets, made.secrets[0]), kRanks);
  return made;
}

class IntroductionTest : public test::LeaklessTest {};

TEST_F(IntroductionTest, SecretsOfARendezvousDoNotTravel) {
  const Made one = introduceAll(false), other = introduceAll(false);
  EXPECT_FALSE(one.heard);
  EXPECT_FALSE(other.heard);
  EXPECT_NE(one.secrets[0], other.secrets[0]);
}

// Which also shows that the test above hears what travels.
TEST_F(IntroductionTest, SecretsTravelWithALauncherThatIsTrusted) {
  EXPECT_TRUE(introduceAll(true).heard);
}

}  // namespace
}  // namespace moeccl
