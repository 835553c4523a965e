// Makes the teacher's model as its checkpoint says.
#include "teacher.h"

#include <charconv>
#include <memory>
#include <new>
#include <stdexcept>

#include "checkpoint.h"
#include "options.h"

namespace train {
namespace {

// "" where there is no such setting.
std::string valueOf(const std::vector<Setting>& settings, const std::string& name) {
  for (const Setting& each : settings)
    if (each.name == name) return each.value;
  return "";
}

template <typename Number>
Number numberOf(const std::vector<Setting>& settings, const std::string& name) {
  const std::string text = valueOf(settings, name);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error("it says \"" + text + "\" for " + name + ", which is no number");
  return number;
}

ModelConfig configOf(const std::vector<Setting>& settings, const ModelConfig& student,
                     const std::string& text) {
  const auto size = [&](const char* name) { return numberOf<std::int64_t>(settings, name); };
  if (valueOf(settings, "text") != text)
    throw std::invalid_argument("it has learned " + valueOf(settings, "text") + "; the text has " +
                                text);
  if (valueOf(settings, "numbers") != kRealName)
    throw std::invalid_argument("it has numbers " + valueOf(settings, "numbers") + ", not " +
                                kRealName);
  if (size("--context") != student.context)
    throw std::invalid_argument("it has --context " + valueOf(settings, "--context") + ", not " +
                                std::to_string(student.context));
  ModelConfig config = student;  // what it sees, and at once
  config.blocks = size("--blocks");
  config.embedding = size("--embedding");
  config.heads = size("--heads");
  config.hidden = size("--hidden");
  config.experts = numbersOf("teacher", valueOf(settings, "--experts"));
  config.residual = size("--residual");
  config.topK = size("--top-k");
  config.capacityFactor = numberOf<double>(settings, "--capacity-factor");
  return config;
}

// What is wrong with a teacher is not wrong with the student.
std::unique_ptr<Model> modelOf(const std::string& path, const Team& team, Parameters& parameters,
                               const ModelConfig& student, const std::string& text,
                               moecclSchedule_t schedule) {
  const std::vector<Setting> settings = settingsIn(path, team);
  try {
    auto model =
        std::make_unique<Model>(team, parameters, configOf(settings, student, text), schedule);
    parameters.allocate();
    return model;
  } catch (const std::bad_alloc&) {
    throw std::invalid_argument("--teacher " + path + ": out of memory");
  } catch (const std::exception& error) {
    throw std::invalid_argument("--teacher " + path + ": " + error.what());
  }
}

}  // namespace

Teacher::Teacher(const std::string& path, const Team& team, const ModelConfig& student,
                 const std::string& text, moecclSchedule_t schedule)
    : parameters_(team) {
  team.agree([&] { model_ = modelOf(path, team, parameters_, student, text, schedule); });
  model_->bind();
  // Whatever it was made with is right; its tensors must be what these settings make.
  Checkpoint checkpoint(path, team, parameters_, {{}, settingsIn(path, team)});
  checkpoint.load();
  hash_ = checkpoint.hash();
}

}  // namespace train
