#include "perf/contender.h"

#include <stdexcept>
#include <vector>

namespace moeccl::perf {
namespace {

class MoecclContender : public Contender {
 public:
  MoecclContender(std::string name, const Collective& collective, Comm comm)
      : Contender(std::move(name), false), collective_(collective), comm_(std::move(comm)) {
    int ranks = 0;
    require(moecclCommCount(comm_.get(), &ranks), "count the ranks", comm_.get());
    barrier_.resize(static_cast<std::size_t>(ranks) + 1);
  }

  void exchange(const void* send, void* recv, std::size_t count, const DataType& type) override {
    require(collective_.call(send, recv, count, type.value, comm_.get(), nullptr),
            collective_.name.data(), comm_.get());
  }

  void barrier() override {
    require(moecclAllGather(&barrier_.back(), barrier_.data(), 1, moecclInt8, comm_.get(), nullptr),
            "barrier", comm_.get());
  }

 private:
  const Collective& collective_;
  Comm comm_;
  std::vector<signed char> barrier_;  // a byte from each rank, and the own one
};

}  // namespace

void require(moecclResult_t result, const char* what, moecclComm_t comm) {
  if (result == moecclSuccess) return;
  std::string text = moecclGetLastError(comm);
  if (text.empty()) text = moecclGetErrorString(result);
  throw std::runtime_error(std::string(what) + ": " + text);
}

std::unique_ptr<Contender> makeContender(const Collective& collective, const std::string& algorithm,
                                         moecclComm_t world) {
  const std::string setting = std::string(collective.name) + "=" + algorithm;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  if (algorithm != "auto") config.algorithms = setting.c_str();
  int rank = 0;
  require(moecclCommUserRank(world, &rank), "ask for the rank", world);
  moecclComm_t comm = nullptr;
  require(moecclCommSplit(world, 0, rank, &comm, &config), setting.c_str(), world);
  return std::make_unique<MoecclContender>(algorithm, collective, Comm(comm));
}

}  // namespace moeccl::perf
