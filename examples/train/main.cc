// Trains a small language model with MoE layers on English text, character by character, on all
// ranks.
#include <moeccl/moeccl.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "checkpoint.h"
#include "curve.h"
#include "model.h"
#include "options.h"
#include "pipeline.h"
#include "teacher.h"
#include "text.h"

namespace train {
namespace {

// As short as it can be and still be the number.
std::string textOf(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

moecclGridShape_t gridOf(const Options& options, moecclComm_t world) {
  int ranks = 0;
  require(moecclCommCount(world, &ranks), "asking for the number of ranks", world);
  if (ranks % options.stages != 0)
    throw std::invalid_argument("--pipeline " + std::to_string(options.stages) +
                                " must divide the number of ranks, " + std::to_string(ranks));
  ranks /= options.stages;
  const int pair = ranks % 2 == 0 ? 2 : 1;
  moecclGridShape_t grid{options.nMp, options.nEp, options.nEsp, moecclOrderEspEp};
  if (grid.nMp == 0) grid.nMp = options.schedule == moecclSchedulePpMoe ? ranks : pair;
  if (grid.nEsp == 0) grid.nEsp = grid.nEp == 0 ? pair : std::max(1, ranks / grid.nEp);
  if (grid.nEp == 0) grid.nEp = std::max(1, ranks / grid.nEsp);
  return grid;
}

ModelConfig modelOf(const Options& options, const Text& text) {
  if (static_cast<std::int64_t>(text.numbers.size()) <= options.model.context)
    throw std::invalid_argument(
        "the text has " + std::to_string(text.numbers.size()) + " characters, and --context " +
        std::to_string(options.model.context) + " needs more; give more --text");
  ModelConfig model = options.model;
  model.characters = static_cast<std::int64_t>(text.characters.size());
  return model;
}

std::string hexOf(std::uint64_t hash) {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// By which checkpoints know it.
std::string identityOf(const Text& text) {
  return std::to_string(text.numbers.size()) + " characters with hash " + hexOf(text.hash);
}

// "S1", or of blocks that have different ones "S1,S2,S1".
std::string namesOf(const std::vector<moecclSchedule_t>& schedules) {
  const bool alike = std::ranges::count(schedules, schedules[0]) == std::ssize(schedules);
  std::string names = moecclScheduleName(schedules[0]);
  for (std::size_t i = 1; i < schedules.size() && !alike; ++i)
    names += std::string(",") + moecclScheduleName(schedules[i]);
  return names;
}

// What decides the curve but for rounding, and what decides that.
Settings settingsOf(const Options& options, const Text& text, const Team& team, const Model& model,
                    const Teacher* teacher) {
  const ModelConfig& config = options.model;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  const moecclGridShape_t& shape = team.shape();
  const bool taught = teacher != nullptr;
  return {{{"ranks", number(team.ranks())},
           {"--pipeline", number(team.stages())},
           {"--mp", number(shape.nMp)},
           {"--ep", number(shape.nEp)},
           {"--esp", number(shape.nEsp)},
           {"--schedule", namesOf(model.schedules())}},
          {{"numbers", kRealName},
           {"--blocks", number(config.blocks)},
           {"--embedding", number(config.embedding)},
           {"--heads", number(config.heads)},
           {"--hidden", number(config.hidden)},
           {"--experts", joined(config.experts)},
           {"--residual", number(config.residual)},
           {"--top-k", number(config.topK)},
           {"--capacity-factor", textOf(config.capacityFactor)},
           {"--context", number(config.context)},
           {"--samples", number(config.samples)},
           {"--capacity-groups", number(config.capacityGroups)},
           {"--seed", std::to_string(config.seed)},
           {"--batch", number(options.batch)},
           {"--learning-rate", textOf(options.learningRate)},
           {"--warm-up", number(options.warmUp)},
           {"--balance", textOf(options.balance)},
           {"teacher", taught ? "of hash " + hexOf(teacher->hash()) : "none"},
           {"--teacher-steps", number(taught ? options.teacherSteps : 0)},
           {"--teacher-weight", textOf(taught ? options.teacherWeight : 0)},
           {"text", identityOf(text)}}};
}

class Trainer {
 public:
  Trainer(moecclComm_t world, const Options& options)
      : options_(options),
        text_(readText(options.texts, world)),
        config_(modelOf(options, text_)),
        team_(world, options.stages, gridOf(options, world)),
        parameters_(team_),
        pipeline_(world, team_, static_cast<std::size_t>(config_.tokens() * config_.embedding)) {
    const std::int64_t atOnce = config_.samples * team_.mpGroups();
    if (options.batch % atOnce != 0)
      throw std::invalid_argument("--batch " + std::to_string(options.batch) +
                                  " must be a multiple of " + std::to_string(atOnce) +
                                  ": --samples for each MP group");
    inputs_.resize(static_cast<std::size_t>(config_.tokens()));
    targets_.resize(inputs_.size());
    passes_ = options.batch / atOnce;
    team_.agree([&] {
      for (std::int64_t i = 0; i < pipeline_.models(passes_); ++i)
        models_.push_back(std::make_unique<Model>(team_, parameters_, config_, options.schedule));
      parameters_.allocate();
    });
    models_.front()->initialise(parameters_);
    for (const auto& model : models_) model->bind();
    if (!options.teacher.empty())
      teacher_ = std::make_unique<Teacher>(options.teacher, team_, config_, identityOf(text_),
                                           options.schedule);
  }

  void run() {
    Checkpoint checkpoint(options_.checkpoint, team_, parameters_,
                          settingsOf(options_, text_, team_, *models_.front(), teacher_.get()));
    if (options_.resume) done_ = checkpoint.load();
    restore(checkpoint.learned());
    // Not after the first hundred steps.
    if (!options_.checkpoint.empty()) agree(team_, team_.rank() == 0 ? checkpointProblem() : "");
    Log log;
    agree(team_, team_.rank() == 0 ? log.open(options_.log, done_) : "");
    describe(checkpoint.weights());
    std::string schedules = namesOf(models_.front()->schedules());
    Progress progress(done_, options_.steps, options_.batch * config_.context);
    for (std::int64_t step = done_ + 1; step <= options_.steps; ++step) {
      const Point point = train(step);
      const bool last = step == options_.steps;
      tellSchedules(step, schedules);
      if (team_.rank() == 0) {
        const std::string wrong = log.add(point);
        if (!wrong.empty()) fail(wrong);
        if (last || step % options_.report == 0) progress.print(point);
      }
      if (!std::isfinite(point.loss))
        throw std::runtime_error("step " + std::to_string(step) +
                                 ": the loss is no number any more; try a smaller "
                                 "--learning-rate or a longer --warm-up");
      if (!options_.checkpoint.empty() && (last || step % options_.checkpointEvery == 0))
        checkpoint.save(step, learned());
    }
  }

 private:
  std::vector<Experts*> layers() const {
    std::vector<Experts*> all;
    for (const auto& model : models_)
      for (Experts* layer : model->layers()) all.push_back(layer);
    return all;
  }

  // "2.0": the first layer of stage 2, whose models each have theirs.
  static std::string nameOf(int stage, std::size_t layer) {
    return std::to_string(stage) + "." + std::to_string(layer);
  }

  // Of the layers of all stages, if they learn. Collective.
  std::vector<Setting> learned() const {
    std::vector<Setting> all;
    for (int stage = 0; stage < team_.stages() && config_.learn; ++stage) {
      const bool speaks = stage == team_.stage() && team_.stageRank() == 0;
      std::vector<Experts*> layers;
      if (speaks) layers = this->layers();
      std::size_t count = layers.size();
      team_.share(&count, sizeof count);
      for (std::size_t i = 0; i < count; ++i) {
        std::string text = speaks ? layers[i]->learned() : "";
        std::size_t size = text.size();
        team_.share(&size, sizeof size);
        text.resize(size);
        team_.share(text.data(), size);
        all.push_back({nameOf(stage, i), text});
      }
    }
    return all;
  }

  // What the checkpoint has of our layers. Where grid or schedule are others they learn anew.
  void restore(const std::vector<Setting>& learned) const {
    const std::vector<Experts*> layers = this->layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto known = std::ranges::find(learned, nameOf(team_.stage(), i),
                                           [](const Setting& it) { return it.name; });
      if (known != learned.end()) layers[i]->restore(known->value);
    }
  }

  std::string checkpointProblem() const {
    const std::string wrong = tryToReplace(options_.checkpoint);
    if (!wrong.empty() || options_.resume || !isThere(options_.checkpoint)) return wrong;
    return "--checkpoint " + options_.checkpoint +
           " is there already; --resume goes on from it, else remove it or name another";
  }

  void describe(std::int64_t weights) const {
    if (team_.rank() != 0) return;
    const moecclGridShape_t& shape = team_.shape();
    std::printf(
        "%d ranks: N_MP %d, N_EP %d, N_ESP %d, schedule %s. %lld %s weights in %lld blocks of %s "
        "experts.\n%zu characters of text, %zu different ones; %lld samples of %lld a step.\n",
        team_.ranks(), shape.nMp, shape.nEp, shape.nEsp,
        namesOf(models_.front()->schedules()).c_str(), static_cast<long long>(weights), kRealName,
        static_cast<long long>(config_.blocks), joined(config_.experts).c_str(),
        text_.numbers.size(), text_.characters.size(), static_cast<long long>(options_.batch),
        static_cast<long long>(config_.context));
    if (team_.stages() > 1)
      std::printf("%d stages of %d ranks; the grid is a stage's.\n", team_.stages(),
                  team_.stageRanks());
    if (done_ > 0)
      std::printf("%s step %lld of %s.\n",
                  done_ < options_.steps ? "Going on after" : "Nothing is left to do after",
                  static_cast<long long>(done_), options_.checkpoint.c_str());
    std::fflush(stdout);
  }

  // Of layers that learn: where they have changed.
  void tellSchedules(std::int64_t step, std::string& before) const {
    const std::string now = namesOf(models_.front()->schedules());
    if (team_.rank() == 0 && now != before)
      std::printf("step %lld: schedule %s instead of %s\n", static_cast<long long>(step),
                  now.c_str(), before.c_str());
    before = now;
  }

  // The samples of one of the MP group's passes: consecutive ones of all that training draws.
  void take(std::int64_t step, std::int64_t pass) {
    const std::int64_t firstSample =
        (step - 1) * options_.batch + (team_.mpGroup() * passes_ + pass) * config_.samples;
    for (std::int64_t i = 0; i < config_.samples; ++i) {
      const std::int32_t* const sample =
          sampleOf(text_, config_.seed, firstSample + i, config_.context);
      std::copy_n(sample, config_.context, inputs_.data() + i * config_.context);
      std::copy_n(sample + 1, config_.context, targets_.data() + i * config_.context);
    }
  }

  bool teaches(std::int64_t step) const {
    return teacher_ != nullptr && step <= options_.teacherSteps;
  }

  Point train(std::int64_t step) {
    const double tokens = static_cast<double>(options_.batch * config_.context);
    parameters_.zeroGradients();
    Outcome outcome;
    pipeline_.run(
        models_, passes_,
        [&](Model& model, std::int64_t pass) {
          take(step, pass);
          Lesson lesson{targets_.data()};
          if (teaches(step)) {
            lesson.teacher = teacher_->probabilities(inputs_.data());
            lesson.weight = options_.teacherWeight;
          }
          outcome += model.forward(inputs_.data(), lesson, 1 / tokens);
        },
        [&](Model& model, std::int64_t pass) {
          take(step, pass);
          model.backward(inputs_.data(),
                         options_.balance / static_cast<double>(passes_ * team_.mpGroups()));
        });
    parameters_.reduceGradients();
    const double warm = static_cast<double>(options_.warmUp), now = static_cast<double>(step);
    parameters_.update(Adam(), options_.learningRate * std::min(now / warm, std::sqrt(warm / now)),
                       step);
    return pointOf(step, outcome);
  }

  Point pointOf(std::int64_t step, const Outcome& mine) const {
    std::vector<double> sums = {mine.crossEntropy, mine.divergence, mine.auxiliaryLoss,
                                mine.dropped};
    const std::size_t first = sums.size();
    sums.insert(sums.end(), mine.assigned.begin(), mine.assigned.end());
    // One rank of each MP group, of each stage.
    if (team_.mpRank() > 0) std::fill(sums.begin(), sums.end(), 0.0);
    team_.sumOverWorld(sums.data(), sums.size());
    const double tokens = static_cast<double>(options_.batch * config_.context);
    const auto passes = static_cast<double>(passes_ * team_.mpGroups());
    const auto blocks = static_cast<double>(config_.blocks);
    const double choices = tokens * static_cast<double>(config_.topK);
    double imbalance = 0;
    auto assigned = sums.begin() + static_cast<std::ptrdiff_t>(first);
    for (std::int64_t block = 0; block < config_.blocks; ++block) {
      const std::int64_t experts = config_.expertsOf(block);
      const double busiest = *std::max_element(assigned, assigned + experts);
      imbalance = std::max(imbalance, busiest / choices * static_cast<double>(experts));
      assigned += experts;
    }
    return {step,
            sums[0] / tokens,
            sums[1] / tokens,
            sums[2] / passes / blocks,
            sums[3] / choices / blocks,
            imbalance};
  }

  const Options& options_;
  Text text_;
  ModelConfig config_;
  Team team_;
  Parameters parameters_;
  Pipeline pipeline_;
  std::vector<std::unique_ptr<Model>> models_;
  std::unique_ptr<Teacher> teacher_;
  std::int64_t passes_ = 0;  // of an MP group in a step
  std::int64_t done_ = 0;    // steps before this run
  std::vector<std::int32_t> inputs_, targets_;
};

int complain(const std::exception& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 2;
}

int main(int count, char** arguments) {
  Options options;
  try {
    options = parseOptions(count, arguments);
    if (options.help) return std::printf("%s", usage().c_str()) < 0;
  } catch (const std::exception& error) {
    return complain(error);
  }

  moecclComm_t world = nullptr;
  require(moecclCommInitEnv(&world, nullptr), "joining");
  int result = 0;
  try {
    Trainer(world, options).run();
  } catch (const std::bad_alloc&) {
    fail("out of memory");  // perhaps on this rank alone
  } catch (const std::exception& error) {
    // The same on all ranks, and none leaves before the others: one voice is enough.
    int rank = 0;
    moecclCommUserRank(world, &rank);
    if (rank == 0) complain(error);
    result = 2;
  }
  require(moecclCommDestroy(world), "leaving");
  return result;
}

}  // namespace
}  // namespace train

int main(int count, char** arguments) { return train::main(count, arguments); }
