// Structs that callers of older and newer releases pass.
#include "src/base/structs.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using test::expectFailure;
using test::outcomeOf;

constexpr unsigned kMagic = 0x7e57;

// A struct of the first release, and of the second, where it has grown by a field.
struct First {
  std::size_t size;
  unsigned magic;
  unsigned version;
  const char* name;
  double seconds;
};
struct Second {
  std::size_t size;
  unsigned magic;
  unsigned version;
  const char* name;
  double seconds;
  std::int64_t added;
};

constexpr StructKind<First> kOfFirst = {
    "it", "IT_INITIALIZER", kMagic, MOECCL_END_OF(First, seconds), MOECCL_END_OF(First, seconds)};
constexpr StructKind<Second> kOfSecond = {
    "it", "IT_INITIALIZER", kMagic, MOECCL_END_OF(Second, seconds), MOECCL_END_OF(Second, added)};

// What a caller passes, with what lies behind it in its memory.
template <typename Struct>
struct Passed {
  Struct it{.size = sizeof(Struct),
            .magic = kMagic,
            .version = MOECCL_VERSION,
            .name = "name",
            .seconds = 2.5};
  std::int64_t behind = -1;
};

// The same memory, as the library of another release sees it.
template <typename Theirs, typename Mine>
Theirs* as(Mine& mine) {
  return reinterpret_cast<Theirs*>(&mine);
}

TEST(Structs, AnOlderCallersMissingFieldIsZero) {
  Passed<First> older;
  const Second read = readStruct(kOfSecond, as<Second>(older));
  EXPECT_STREQ(read.name, "name");
  EXPECT_EQ(read.seconds, 2.5);
  EXPECT_EQ(read.added, 0);
  EXPECT_EQ(read.size, sizeof(Second));
}

TEST(Structs, ANewerCallersUnknownFieldMustBeZero) {
  Passed<Second> newer;
  newer.it.version = MOECCL_VERSION + 1;
  EXPECT_EQ(readStruct(kOfFirst, as<First>(newer)).seconds, 2.5);
  newer.it.added = std::int64_t{1} << 56;
  expectFailure(outcomeOf([&] { readStruct(kOfFirst, as<First>(newer)); }), moecclInvalidArgument,
                "it sets a field (at byte 39) that the header of version " +
                    versionText(MOECCL_VERSION + 1) + " has and this library, " +
                    versionText(MOECCL_VERSION) + ", has not");
}

TEST(Structs, AnOlderCallerIsWrittenAsFarAsItsStructReaches) {
  Passed<First> older;
  writeStruct(kOfSecond, {0, 0, 0, "other", 7.5, 99}, as<Second>(older));
  EXPECT_STREQ(older.it.name, "other");
  EXPECT_EQ(older.it.seconds, 7.5);
  EXPECT_EQ(older.it.size, sizeof(First));
  EXPECT_EQ(older.it.magic, kMagic);
  EXPECT_EQ(older.it.version, static_cast<unsigned>(MOECCL_VERSION));
  EXPECT_EQ(older.behind, -1);
}

TEST(Structs, ANewerCallerKeepsWhatTheLibraryDoesNotKnow) {
  Passed<Second> newer;
  writeStruct(kOfFirst, {0, 0, 0, "other", 7.5}, as<First>(newer));
  EXPECT_EQ(newer.it.seconds, 7.5);
  EXPECT_EQ(newer.it.added, 0);
  EXPECT_EQ(newer.it.size, sizeof(Second));
}

TEST(Structs, OfOneReleaseAllFieldsAreReadAndWritten) {
  Passed<Second> same;
  same.it.added = 5;
  EXPECT_EQ(readStruct(kOfSecond, &same.it).added, 5);
  writeStruct(kOfSecond, {0, 0, 0, "other", 7.5, 99}, &same.it);
  EXPECT_EQ(same.it.added, 99);
  EXPECT_EQ(same.behind, -1);
}

TEST(Structs, WhatWasNotInitialisedIsNamed) {
  const auto refused = [](auto&& spoil, const std::string& text) {
    Passed<Second> wrong;
    spoil(wrong.it);
    for (const test::Outcome& outcome :
         {outcomeOf([&] { readStruct(kOfSecond, &wrong.it); }),
          outcomeOf([&] { writeStruct(kOfSecond, Second{}, &wrong.it); })})
      expectFailure(outcome, moecclInvalidArgument, text);
  };
  refused([](Second& it) { it.magic = 1; },
          "it was not initialised (magic is 0x00000001, not 0x00007e57); begin with "
          "IT_INITIALIZER, and leave size, magic and version alone");
  refused([](Second& it) { it.size = sizeof(First) - 1; }, "size is 31; it is from 32 to 4096");
  refused([](Second& it) { it.size = 4097; }, "size is 4097; it is from 32 to 4096");
  refused([](Second& it) { it.version = 0; }, "version is 0");
  refused([](Second& it) { it.version = 990'000; }, "it comes from a header of version 99.0.0");
  expectFailure(outcomeOf([] { readStruct<Second>(kOfSecond, nullptr); }), moecclInvalidArgument,
                "it is NULL; begin with IT_INITIALIZER");
}

}  // namespace
}  // namespace moeccl
