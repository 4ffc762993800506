#include "launch/ranks/output_relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>

namespace tessera {
namespace {

struct Pipe {
  std::array<int, 2> ends = {-1, -1};
  Pipe() { EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0); }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), std::ssize(text));
  }
  std::string read() const {
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    std::string text(1 << 20, '\0');
    const ssize_t count = ::read(ends[0], text.data(), text.size());
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return text;
  }
};

// Rank 0 unchanged and rank 1 with a prefix, to one pipe.
struct Relay {
  Pipe shown;
  Pipe rank0;
  Pipe rank1;
  OutputRelay relay{{{.pipe = rank0.ends[0], .prefix = "", .shown_on = shown.ends[1], .file = -1},
                     {.pipe = rank1.ends[0], .prefix = "[rank 1] ", .shown_on = shown.ends[1], .file = -1}}};
  std::string moved() {
    relay.move();
    return shown.read();
  }
};

TEST(OutputRelay, ShowsWholeLinesOnly) {
  Relay r;
  r.rank0.write("begun ");
  r.rank1.write("one\ntwo\nthr");
  EXPECT_EQ(r.moved(), "[rank 1] one\n[rank 1] two\n");
  r.rank0.write("and ended\n");
  r.rank1.write("ee\n\n");
  EXPECT_EQ(r.moved(), "begun and ended\n[rank 1] three\n[rank 1] \n");
}

TEST(OutputRelay, HalfLinesAreShownAtTheEnd) {
  Relay r;
  r.rank0.write("no line end");
  r.rank1.write("nor here");
  EXPECT_EQ(r.moved(), "");
  r.rank1.write(", and more that nobody has read yet");
  r.relay.end_sources();
  EXPECT_EQ(r.moved(), "no line end\n[rank 1] nor here, and more that nobody has read yet\n");
  EXPECT_FALSE(r.relay.has_pending());
}

TEST(OutputRelay, ProgressBarsAreOfRankZero) {
  Relay r;
  r.rank0.write("10 %\r20 %\r");
  r.rank1.write("10 %\r20 %\r");
  EXPECT_EQ(r.moved(), "10 %\r20 %\r");
  r.rank1.write("30 %\rdone\r\nnext\n");
  EXPECT_EQ(r.moved(), "[rank 1] done\n[rank 1] next\n");
}

TEST(OutputRelay, AReaderThatStandsStillKeepsNothingButOutputWaiting) {
  Relay r;
  const std::string line(1023, 'x');
  fcntl(r.rank1.ends[1], F_SETFL, O_NONBLOCK);
  // Write until neither pipes nor the relay take more; every call must return.
  int64_t lines_written = 0;
  for (int idle = 0; idle < 3;) {
    const std::string text = line + "\n";
    const bool written = ::write(r.rank1.ends[1], text.data(), text.size()) == std::ssize(text);
    idle = written ? 0 : idle + 1;
    lines_written += written ? 1 : 0;
    ASSERT_LT(lines_written, 10'000) << "bounded";
    r.relay.move();
  }
  EXPECT_TRUE(r.relay.has_pending());
  r.relay.end_sources();
  std::string text;
  while (r.relay.has_pending()) text += r.moved();
  text += r.shown.read();
  EXPECT_EQ(std::ssize(text), lines_written * std::ssize("[rank 1] " + line + "\n"));
}

// A rank's child that outlives it and always writes faster than the relay reads.
TEST(OutputRelay, EndsThoughSomebodyWritesOn) {
  const Pipe shown;
  const int endless = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(endless, 0);
  OutputRelay relay({{.pipe = endless, .prefix = "[rank 1] ", .shown_on = shown.ends[1], .file = -1}});
  relay.end_sources();
  EXPECT_TRUE(relay.has_pending());
}

TEST(OutputRelay, ALineWithoutEndIsShownInPieces) {
  Relay r;
  const std::string part(1 << 15, 'x');
  for (const Pipe* rank : {&r.rank0, &r.rank1}) {
    std::string text;
    for (int i = 0; i < 33; ++i) {
      rank->write(part);
      r.relay.move();
    }
    while (r.relay.has_pending()) text += r.moved();
    text += r.shown.read();
    rank->write("end\n");
    text += r.moved();
    std::string expected(33 * part.size(), 'x');
    EXPECT_EQ(text, rank == &r.rank0 ? expected + "end\n" : "[rank 1] " + expected + "\n[rank 1] end\n");
  }
}

// Writes lines until one would get no answer, and returns what is said about them.
std::string lose(OutputRelay& relay, const Pipe& rank) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    rank.write("to nobody\n");
    relay.move();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(OutputRelay, WhatCannotBeWrittenIsOneWarningAndRanksNeverLearn) {
  const auto former = std::signal(SIGPIPE, SIG_IGN);
  Relay r;
  close(r.shown.ends[0]);
  EXPECT_EQ(lose(r.relay, r.rank0), "warning: standard output: Broken pipe; the job continues without it\n");
  EXPECT_EQ(lose(r.relay, r.rank1), "");
  std::signal(SIGPIPE, former);

  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  for (const bool is_log : {false, true}) {
    const Pipe rank;
    OutputRelay relay(
        {{.pipe = rank.ends[0], .prefix = "", .shown_on = is_log ? -1 : full, .file = is_log ? full : -1}});
    EXPECT_EQ(lose(relay, rank),
              fmt::format("warning: {}: No space left on device; the job continues without it\n",
                          is_log ? "a rank's log file" : "standard output"));
    EXPECT_FALSE(relay.has_pending());
  }
}

TEST(OutputRelay, FilesGetTheBytesAsTheyAre) {
  const Pipe shown;
  const Pipe rank;
  const Pipe file;
  OutputRelay relay({{.pipe = rank.ends[0], .prefix = "[rank 5] ", .shown_on = -1, .file = file.ends[1]}});
  rank.write("a\rb\nhalf");
  relay.move();
  EXPECT_EQ(file.read(), "a\rb\nhalf");
  EXPECT_EQ(shown.read(), "");
}

}  // namespace
}  // namespace tessera
