// Runs MPI's collectives. An algorithm of Open MPI is fixed by a control variable while the
// competitor's communicator is made.
#include "perf/common/mpi_competitor.h"

#include <moeccl/mpi.h>
#include <mpi.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace moeccl::perf {
namespace {

struct MpiCollective {
  std::string_view name;
  bool displaces;       // blocks are told by displacements
  const char* control;  // Open MPI's variable that fixes the algorithm of communicators to come
  int (*call)(const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm);
};

constexpr std::array kMpiCollectives = {
    MpiCollective{"alltoall", false, "coll_tuned_alltoall_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Alltoall(send, count, type, recv, count, type, comm);
                  }},
    MpiCollective{"alltoallv", true, "coll_tuned_alltoallv_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    int ranks = 0;
                    MPI_Comm_size(comm, &ranks);
                    static std::vector<int> counts, displs;
                    counts.assign(static_cast<std::size_t>(ranks), count);
                    displs.resize(static_cast<std::size_t>(ranks));
                    for (int i = 0; i < ranks; ++i) displs[static_cast<std::size_t>(i)] = i * count;
                    return MPI_Alltoallv(send, counts.data(), displs.data(), type, recv,
                                         counts.data(), displs.data(), type, comm);
                  }},
    MpiCollective{"allgather", false, "coll_tuned_allgather_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Allgather(send, count, type, recv, count, type, comm);
                  }},
    MpiCollective{"allgatherv", true, "coll_tuned_allgatherv_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    int ranks = 0;
                    MPI_Comm_size(comm, &ranks);
                    static std::vector<int> counts, displs;
                    counts.assign(static_cast<std::size_t>(ranks), count);
                    displs.resize(static_cast<std::size_t>(ranks));
                    for (int i = 0; i < ranks; ++i) displs[static_cast<std::size_t>(i)] = i * count;
                    return MPI_Allgatherv(send, count, type, recv, counts.data(), displs.data(),
                                          type, comm);
                  }},
    MpiCollective{"reducescatterv", false, "coll_tuned_reduce_scatter_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    int ranks = 0;
                    MPI_Comm_size(comm, &ranks);
                    static std::vector<int> counts;
                    counts.assign(static_cast<std::size_t>(ranks), count);
                    return MPI_Reduce_scatter(send, recv, counts.data(), type, MPI_SUM, comm);
                  }},
    MpiCollective{"reducescatter", false, "coll_tuned_reduce_scatter_block_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Reduce_scatter_block(send, recv, count, type, MPI_SUM, comm);
                  }},
    MpiCollective{"allreduce", false, "coll_tuned_allreduce_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Allreduce(send, recv, count, type, MPI_SUM, comm);
                  }},
    MpiCollective{"broadcast", false, "coll_tuned_bcast_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    int rank = 0, bytes = 0;
                    MPI_Comm_rank(comm, &rank);
                    MPI_Type_size(type, &bytes);
                    // It has one buffer, ours two.
                    if (rank == 0)
                      std::memcpy(
                          recv, send,
                          static_cast<std::size_t>(bytes) * static_cast<std::size_t>(count));
                    return MPI_Bcast(recv, count, type, 0, comm);
                  }},
    MpiCollective{"reduce", false, "coll_tuned_reduce_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Reduce(send, recv, count, type, MPI_SUM, 0, comm);
                  }},
    MpiCollective{"gather", false, "coll_tuned_gather_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Gather(send, count, type, recv, count, type, 0, comm);
                  }},
    MpiCollective{"scatter", false, "coll_tuned_scatter_algorithm",
                  [](const void* send, void* recv, int count, MPI_Datatype type, MPI_Comm comm) {
                    return MPI_Scatter(send, count, type, recv, count, type, 0, comm);
                  }},
};

const MpiCollective& find(const MeasuredCollective& collective) {
  for (const MpiCollective& entry : kMpiCollectives)
    if (entry.name == collective.name) return entry;
  throw std::runtime_error("moeccl-perf knows no MPI function that does " +
                           std::string(collective.name));
}

void requireMpi(int result, const char* what) {
  if (result != MPI_SUCCESS)
    throw std::runtime_error(std::string(what) + ": MPI error " + std::to_string(result));
}

// For sums; what MPI has no type for can only be moved.
MPI_Datatype mpiTypeOf(const DataType& type, bool sums) {
  switch (type.value) {
    case moecclInt8:
      return MPI_INT8_T;
    case moecclUint8:
      return MPI_UINT8_T;
    case moecclInt16:
      return MPI_INT16_T;
    case moecclUint16:
      return MPI_UINT16_T;
    case moecclInt32:
      return MPI_INT32_T;
    case moecclUint32:
      return MPI_UINT32_T;
    case moecclInt64:
      return MPI_INT64_T;
    case moecclUint64:
      return MPI_UINT64_T;
    case moecclFloat32:
      return MPI_FLOAT;
    case moecclFloat64:
      return MPI_DOUBLE;
    default:
      if (sums) throw std::runtime_error("MPI has no type for sums of " + std::string(type.name));
      return type.bytes == 2 ? MPI_UINT16_T : MPI_UINT8_T;
  }
}

class MpiCompetitor : public Competitor {
 public:
  MpiCompetitor(std::string name, const MeasuredCollective& collective)
      : Competitor(std::move(name), true), collective_(collective), mpi_(find(collective)) {
    requireMpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    requireMpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    requireMpi(MPI_Comm_size(comm_, &ranks_), "MPI_Comm_size");
  }
  ~MpiCompetitor() override { MPI_Comm_free(&comm_); }

  void exchange(const void* send, void* recv, std::size_t count, const DataType& type) override {
    if (count > static_cast<std::size_t>(mpi_.displaces ? INT_MAX / ranks_ : INT_MAX))
      throw std::runtime_error("MPI takes counts and displacements of less than 2^31 elements");
    const bool ofInput = isPartOfInput(send, recv, count * type.bytes);
    const bool inPlace = ofInput || isPartOfOutput(send, recv, count * type.bytes);
    requireMpi(mpi_.call(inPlace ? MPI_IN_PLACE : send, ofInput ? const_cast<void*>(send) : recv,
                         static_cast<int>(count), mpiTypeOf(type, collective_.sums), comm_),
               collective_.name.data());
  }

  // MPI leaves a part of the input's place at its begin.
  void settle(const void* send, void* recv, std::size_t count, const DataType& type) override {
    const std::size_t block = count * type.bytes;
    if (isPartOfInput(send, recv, block)) std::memmove(recv, send, block);
  }

  void barrier() override { requireMpi(MPI_Barrier(comm_), "MPI_Barrier"); }

 private:
  // In place, where the larger buffer begins at `whole`.
  bool isPart(const void* part, const void* whole, std::size_t block) const {
    if (collective_.inPlaceBlock == nullptr) return false;
    const auto own = static_cast<std::size_t>(collective_.inPlaceBlock(rank_));
    return part == static_cast<const std::byte*>(whole) + block * own;
  }
  bool isPartOfOutput(const void* send, const void* recv, std::size_t block) const {
    return isPart(send, recv, block);
  }
  bool isPartOfInput(const void* send, const void* recv, std::size_t block) const {
    return !isPartOfOutput(send, recv, block) && isPart(recv, send, block);
  }

  const MeasuredCollective& collective_;
  const MpiCollective& mpi_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
};

// An integer variable of MPI's tool interface whose values have names.
class Control {
 public:
  explicit Control(const char* name) : name_(name) {
    if (MPI_T_cvar_get_index(name, &index_) != MPI_SUCCESS)
      throw std::runtime_error("this MPI has no control variable " + name_ +
                               "; only \"default\" can be measured");
    int nameLength = 0, textLength = 0, verbosity = 0, bind = 0, scope = 0;
    MPI_Datatype type;
    requireMpi(MPI_T_cvar_get_info(index_, nullptr, &nameLength, &verbosity, &type, &values_,
                                   nullptr, &textLength, &bind, &scope),
               name);
    int count = 0;
    requireMpi(MPI_T_cvar_handle_alloc(index_, nullptr, &handle_, &count), name);
    if (type != MPI_INT || count != 1 || values_ == MPI_T_ENUM_NULL)
      throw std::runtime_error(name_ + " is no list of algorithms in this MPI");
  }
  ~Control() { MPI_T_cvar_handle_free(&handle_); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void set(const std::string& wanted) {
    int items = 0, typeNameLength = 0;
    requireMpi(MPI_T_enum_get_info(values_, &items, nullptr, &typeNameLength), name_.c_str());
    std::string names;
    for (int i = 0; i < items; ++i) {
      std::array<char, 128> name{};
      int value = 0, length = name.size();
      requireMpi(MPI_T_enum_get_item(values_, i, &value, name.data(), &length), name_.c_str());
      if (wanted == name.data()) return write(value);
      names += std::string(names.empty() ? "" : ", ") + name.data();
    }
    throw std::runtime_error("--mpi-algorithms: " + name_ + " has no \"" + wanted +
                             "\"; there are default, " + names);
  }
  void write(int value) { requireMpi(MPI_T_cvar_write(handle_, &value), name_.c_str()); }

 private:
  std::string name_;
  int index_ = 0;
  MPI_T_enum values_ = MPI_T_ENUM_NULL;
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
};

class MpiPresent : public Mpi {
 public:
  MpiPresent() {
    requireMpi(MPI_Init(nullptr, nullptr), "MPI_Init");
    int provided = 0;
    requireMpi(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided), "MPI_T_init_thread");
  }
  ~MpiPresent() override {
    MPI_T_finalize();
    MPI_Finalize();
  }

  moecclResult_t join(moecclComm_t* comm, const moecclConfig_t& config) override {
    return moecclCommInitMpi(comm, MPI_COMM_WORLD, &config);
  }

  std::unique_ptr<Competitor> competitor(const MeasuredCollective& collective,
                                         const std::string& algorithm) override {
    const std::string name = "mpi:" + algorithm;
    if (algorithm == "default") return std::make_unique<MpiCompetitor>(name, collective);
    Control control(find(collective).control);
    control.set(algorithm);
    auto competitor = std::make_unique<MpiCompetitor>(name, collective);
    control.write(0);  // Open MPI's "ignore": its own choice for the communicators that follow
    return competitor;
  }

  std::string version() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    return std::string(text.data());
  }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::exit(code);
  }
};

class VariablesForAWhile {
 public:
  explicit VariablesForAWhile(const std::vector<std::string>& variables) {
    for (const std::string& variable : variables) {
      const std::string name = variable.substr(0, variable.find('='));
      const char* const before = std::getenv(name.c_str());
      before_.emplace_back(name, before ? std::optional<std::string>(before) : std::nullopt);
      setenv(name.c_str(), variable.c_str() + name.size() + 1, 1);
    }
  }
  ~VariablesForAWhile() {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) {
      if (it->second)
        setenv(it->first.c_str(), it->second->c_str(), 1);
      else
        unsetenv(it->first.c_str());
    }
  }
  VariablesForAWhile(const VariablesForAWhile&) = delete;
  VariablesForAWhile& operator=(const VariablesForAWhile&) = delete;

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace

bool startedByMpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

std::unique_ptr<Mpi> startMpi(bool chooseAlgorithms, const std::vector<std::string>& environment) {
  if (!startedByMpi())
    throw std::runtime_error(
        "comparing with MPI takes mpirun, as in: moeccl-lab mpirun -- moeccl-perf ...");
  // Open MPI looks at the control variables of single algorithms only if this is set.
  if (chooseAlgorithms) setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0);
  const VariablesForAWhile variables(environment);
  return std::make_unique<MpiPresent>();
}

}  // namespace moeccl::perf
