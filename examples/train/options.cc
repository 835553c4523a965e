// Reads the trainer's command line.
#include "options.h"

#include <charconv>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "checkpoint.h"
#include "examples/common/command_line.h"

namespace train {
namespace {

using command_line::Option;
using command_line::real;
using command_line::whole;

moecclSchedule_t scheduleOf(const std::string& text) {
  for (int i = 0; moecclScheduleName(static_cast<moecclSchedule_t>(i)) != nullptr; ++i)
    if (text == moecclScheduleName(static_cast<moecclSchedule_t>(i)))
      return static_cast<moecclSchedule_t>(i);
  command_line::wrong("schedule", text, "auto, baseline, S1, S2 or PPMoE");
}

std::vector<Option> optionsOf(Options& options) {
  ModelConfig& model = options.model;
  // So that products of three of them, in bytes, are numbers still.
  const auto sizeOf = [](const char* name, std::int64_t& target) {
    return whole<std::int64_t>(name, target, 1, std::int64_t{1} << 19);
  };
  const auto stepsOf = [](const char* name, std::int64_t& target) {
    return whole<std::int64_t>(name, target, 1);
  };
  return {
      {"blocks", "N", "blocks of attention and experts (2)", sizeOf("blocks", model.blocks)},
      {"embedding", "N", "elements of a token (64)", sizeOf("embedding", model.embedding)},
      {"heads", "N", "of attention, a multiple of --mp (8)", sizeOf("heads", model.heads)},
      {"hidden", "N", "hidden units of an expert, a multiple of --esp (128)",
       sizeOf("hidden", model.hidden)},
      {"experts", "N,...",
       "of each block, multiples of --ep; the last is that of all further blocks, too (8)",
       [&](const std::string& text) { model.experts = numbersOf("experts", text); }},
      {"residual", "N", "hidden units of an expert that all tokens pass, besides (0: none)",
       whole<std::int64_t>("residual", model.residual, 0)},
      {"top-k", "N", "experts per token (2)", sizeOf("top-k", model.topK)},
      {"capacity-factor", "F", "places per expert, by what even routing would need (1.25)",
       real("capacity-factor", model.capacityFactor, false)},
      {"context", "N", "characters of a sample (64)", sizeOf("context", model.context)},
      {"samples", "N", "samples that an MP group takes at once (4)",
       sizeOf("samples", model.samples)},
      {"capacity-groups", "N", "of the samples taken at once, a multiple of --mp (8)",
       sizeOf("capacity-groups", model.capacityGroups)},
      {"seed", "N", "of the first weights and the samples (1)",
       whole<std::uint64_t>("seed", model.seed, 0)},
      {"pipeline", "N", "stages, each with its blocks and ranks; the grid is a stage's (1)",
       whole("pipeline", options.stages, 1)},
      {"mp", "N", "ranks per MP group (2, or 1 if their number is odd; all under PPMoE)",
       whole("mp", options.nMp, 1)},
      {"ep", "N", "ranks per EP group (number of ranks / --esp)", whole("ep", options.nEp, 1)},
      {"esp", "N", "ranks per ESP group (number of ranks / --ep, or 2, or 1)",
       whole("esp", options.nEsp, 1)},
      {"schedule", "NAME", "auto, baseline, S1, S2 or PPMoE (auto)",
       [&](const std::string& text) { options.schedule = scheduleOf(text); }},
      {"learn", nullptr, "change the schedule of layers as they learn what it takes, if it is auto",
       [&](const std::string&) { model.learn = true; }},
      {"text", "FILE", "English to learn, may be given more than once (Debian's licences)",
       [&](const std::string& text) { options.texts.push_back(text); }},
      {"batch", "N", "samples of a step, a multiple of --samples times the MP groups (16)",
       sizeOf("batch", options.batch)},
      {"steps", "N", "of training, those before --resume included (500)",
       stepsOf("steps", options.steps)},
      {"learning-rate", "X", "of Adam, at the end of the warm-up; then by 1 / sqrt(step) (0.003)",
       real("learning-rate", options.learningRate, false)},
      {"warm-up", "N", "steps (50)", stepsOf("warm-up", options.warmUp)},
      {"balance", "X", "weight of the layers' auxiliary loss (0.01)",
       real("balance", options.balance, true)},
      {"teacher", "FILE", "checkpoint of a model of the same text and --context to learn from, too",
       [&](const std::string& text) { options.teacher = text; }},
      {"teacher-steps", "N", "the first so many steps: to the end it does harm, as MoS found (350)",
       stepsOf("teacher-steps", options.teacherSteps)},
      {"teacher-weight", "X", "of the divergence from the teacher, by the loss (1)",
       real("teacher-weight", options.teacherWeight, false)},
      {"report", "N", "steps between two lines of progress (10)",
       stepsOf("report", options.report)},
      {"log", "FILE", "a line of CSV for every step, for plot_loss.py",
       [&](const std::string& text) { options.log = text; }},
      {"checkpoint", "FILE", "where to keep the state of training",
       [&](const std::string& text) { options.checkpoint = text; }},
      {"checkpoint-every", "N", "steps (100); also after the last",
       stepsOf("checkpoint-every", options.checkpointEvery)},
      {"resume", nullptr, "go on from --checkpoint",
       [&](const std::string&) { options.resume = true; }},
      {"help", nullptr, "show this help", [&](const std::string&) { options.help = true; }},
  };
}

struct File {
  std::string what;  // to people
  std::filesystem::path path;
  bool isWritten;
};

// By whatever names, links included.
bool isOne(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  if (std::filesystem::equivalent(one, other, error)) return true;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(one), error) ==
         std::filesystem::weakly_canonical(std::filesystem::absolute(other), error);
}

// What is written would take the place of what is read or written besides.
void requireOneFileEach(const Options& options) {
  std::vector<File> files;
  for (const auto& [name, path] :
       {std::pair<std::string, const std::string&>{"--checkpoint ", options.checkpoint},
        {"--log ", options.log}}) {
    if (path.empty()) continue;
    files.push_back({name + path, path, true});
    files.push_back({"the draft of " + name + path, draftOf(path), true});
  }
  if (!options.teacher.empty())
    files.push_back({"--teacher " + options.teacher, options.teacher, false});
  for (const std::string& text : options.texts) files.push_back({"--text " + text, text, false});
  for (std::size_t i = 0; i < files.size(); ++i)
    for (std::size_t j = i + 1; j < files.size(); ++j)
      if (files[i].isWritten && isOne(files[i].path, files[j].path))
        throw std::invalid_argument(files[i].what + " and " + files[j].what +
                                    " are one file; each needs its own");
}

}  // namespace

Options parseOptions(int count, char** arguments) {
  Options options;
  command_line::parse(count, arguments, optionsOf(options));
  if (options.resume && options.checkpoint.empty())
    throw std::invalid_argument("--resume needs --checkpoint, the file to go on from");
  const Options unsaid;
  if (options.teacher.empty() && (options.teacherSteps != unsaid.teacherSteps ||
                                  options.teacherWeight != unsaid.teacherWeight))
    throw std::invalid_argument("--teacher-steps and --teacher-weight need --teacher");
  if (!options.teacher.empty() && options.stages > 1)
    throw std::invalid_argument("--teacher with --pipeline " + std::to_string(options.stages) +
                                ": a teacher has no pipeline; --pipeline must be 1");
  requireOneFileEach(options);
  if (options.texts.empty())
    for (const char* name : {"GPL-3", "GPL-2", "LGPL-2.1", "GFDL-1.3", "MPL-2.0", "Apache-2.0"})
      options.texts.push_back(std::string("/usr/share/common-licenses/") + name);
  return options;
}

std::string usage() {
  Options options;
  return "usage: train [OPTION...], started once for each rank by moeccl-lab run\n\n" +
         command_line::help(optionsOf(options));
}

std::vector<std::int64_t> numbersOf(const char* option, const std::string& text) {
  std::vector<std::int64_t> numbers;
  const auto wrong = [&] {
    command_line::wrong(option, text, "whole numbers above 0, with commas between them");
  };
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 1 || (stop != end && *stop != ',')) wrong();
    numbers.push_back(number);
    if (stop == end) return numbers;
    at = stop + 1;
  }
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::int64_t number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

}  // namespace train
