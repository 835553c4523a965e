// SHA-256 and HMAC by published answers.
#include "src/bootstrap/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace moeccl {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(const Digest& digest) {
  std::string text;
  for (std::byte byte : digest)
    for (int nibble : {std::to_integer<int>(byte >> 4), std::to_integer<int>(byte & std::byte{15})})
      text += "0123456789abcdef"[nibble];
  return text;
}

// FIPS 180-2, appendix B.
TEST(Digest, IsSha256) {
  EXPECT_EQ(hex(sha256({bytes("a"), bytes(""), bytes("bc")})),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// RFC 4231, cases 1, 2 and 6 (a key longer than a block).
TEST(Digest, IsHmac) {
  EXPECT_EQ(hex(hmacSha256(bytes(std::string(20, '\x0b')), {bytes("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmacSha256(bytes("Jefe"), {bytes("what do ya want "), bytes("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmacSha256(bytes(std::string(131, '\xaa')),
                           {bytes("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Digest, ComparesAllBytes) {
  EXPECT_TRUE(equalInConstantTime(bytes("same"), bytes("same")));
  EXPECT_TRUE(equalInConstantTime({}, {}));
  EXPECT_FALSE(equalInConstantTime(bytes("same"), bytes("sane")));
  EXPECT_FALSE(equalInConstantTime(bytes("Same"), bytes("same")));
  EXPECT_FALSE(equalInConstantTime(bytes("same"), bytes("some more")));
}

}  // namespace
}  // namespace moeccl
