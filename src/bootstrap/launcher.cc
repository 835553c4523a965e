// Reads the variables of launchers, and checks those that name the file or the port.
#include "src/bootstrap/launcher.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/bootstrap/digest.h"

namespace moeccl {
namespace {

// The names of a launcher's variables, and of the one that names a job, where there is one.
struct Launcher {
  const char *rank, *ranks, *job;
};
constexpr Launcher kLaunchers[] = {
    {"MOECCL_RANK", "MOECCL_NRANKS", nullptr},
    {"RANK", "WORLD_SIZE", nullptr},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid"},
    {"PMI_RANK", "PMI_SIZE", nullptr},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"},
};

[[noreturn]] void invalid(const std::string& text) { throw Error(moecclInvalidArgument, text); }

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  const char* get(const char* name) const { return valueOf(environment_, name); }

  // From 0 on.
  int number(const char* name) const {
    const char* const text = get(name);
    int value = -1;
    const char* const end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, value);
    if (error != std::errc() || rest != end || value < 0)
      invalid(stringf("%s is \"%s\"; it must be a number from 0 to %d", name, text,
                      std::numeric_limits<int>::max()));
    return value;
  }

  // Null: no launcher has started this process.
  const Launcher* launcher() const {
    for (const Launcher& it : kLaunchers)
      if (get(it.rank) != nullptr && get(it.ranks) != nullptr) return &it;
    for (const Launcher& it : kLaunchers)
      // A batch script of Slurm's is a process of its own.
      if (get(it.rank) != nullptr && std::string_view(it.rank) != "SLURM_PROCID")
        invalid(stringf("%s is set, and %s is not set; %s", it.rank, it.ranks, kAny));
    // PMIx's server would tell more.
    if (get("PMIX_RANK") != nullptr)
      invalid(stringf("PMIX_RANK is set, and no variable tells the number of ranks; %s", kAny));
    for (const char* name : {"MOECCL_NRANKS", "MOECCL_ID_FILE"})
      if (get(name) != nullptr)
        invalid(
            stringf("%s is set, and MOECCL_RANK is not set; MOECCL_RANK, MOECCL_NRANKS and "
                    "MOECCL_ID_FILE go together",
                    name));
    return nullptr;
  }

  std::uint16_t port() const {
    const char* const text = get("MASTER_PORT");
    const char* const agent = get("TORCHELASTIC_USE_AGENT_STORE");
    int port = 0;
    const char* const end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, port);
    if (error != std::errc() || rest != end || port < 1 || port > 65534)
      invalid(stringf("MASTER_PORT is \"%s\"; it must be a port from 1 to 65534", text));
    if (agent != nullptr && std::string_view(agent) == "True") ++port;
    return static_cast<std::uint16_t>(port);
  }

  Secret secret() const {
    constexpr std::string_view kLabel = "moeccl MASTER_PORT";
    const char* const text = get("MOECCL_SECRET");
    const char* const trusted = get("MOECCL_TRUSTED_NETWORK");
    if (trusted != nullptr && std::string_view(trusted) != "0" && std::string_view(trusted) != "1")
      invalid(stringf("MOECCL_TRUSTED_NETWORK is \"%s\"; it must be 0 or 1", trusted));
    const bool trusts = trusted != nullptr && *trusted == '1';
    if (text == nullptr && !trusts)
      invalid(
          "ranks meet at MASTER_PORT, where anybody may connect; set MOECCL_SECRET on all ranks "
          "to a text that nobody else knows, or MOECCL_TRUSTED_NETWORK=1 where only this job's "
          "users can connect");
    const std::string_view shared = text == nullptr ? "" : text;
    return sha256({std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(shared))});
  }

 private:
  static constexpr const char* kAny = "MOECCL_RANK and MOECCL_NRANKS name a rank for any launcher";

  const Environment& environment_;
};

}  // namespace

std::string LaunchedRank::text() const {
  return stringf("rank %d of %d, by %s and %s,", rank, ranks, rankVariable.c_str(),
                 ranksVariable.c_str());
}

LaunchedRank findLaunch(const Environment& environment) {
  const Variables variables(environment);
  LaunchedRank launch;
  const Launcher* const launcher = variables.launcher();
  if (launcher == nullptr) return launch;
  launch.rankVariable = launcher->rank;
  launch.ranksVariable = launcher->ranks;
  launch.rank = variables.number(launcher->rank);
  launch.ranks = variables.number(launcher->ranks);
  if (launch.rank >= launch.ranks)
    invalid(stringf("%s is %d; it must be below %s, which is %d", launcher->rank, launch.rank,
                    launcher->ranks, launch.ranks));
  if (launch.ranks == 1) return launch;
  const char* const job = launcher->job == nullptr ? nullptr : variables.get(launcher->job);
  const char* const step = variables.get("SLURM_STEP_ID");
  if (const char* const file = variables.get("MOECCL_ID_FILE")) {
    launch.idFile = file;
  } else if (variables.get("MASTER_ADDR") != nullptr && variables.get("MASTER_PORT") != nullptr) {
    launch.host = variables.get("MASTER_ADDR");
    launch.port = variables.port();
    launch.secret = variables.secret();
  } else if (job != nullptr) {
    launch.idFile = stringf("moeccl-id.%s.%s", job, step == nullptr ? "0" : step);
  } else {
    invalid(
        "MOECCL_ID_FILE is not set; name a new file that every rank can see, or set MASTER_ADDR "
        "and MASTER_PORT");
  }
  return launch;
}

}  // namespace moeccl
