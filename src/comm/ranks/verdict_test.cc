#include "comm/ranks/verdict.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

constexpr Verdict::Duration kGrace{0.3};
constexpr Verdict::Duration kSuspicion{1.0};

MemberId rank(int index) { return {.is_agent = false, .index = index}; }
MemberId agent(int node) { return {.is_agent = true, .index = node}; }
Failure failure(int rank, const std::string& message) {
  return {.rank = rank, .host = "h", .message = message};
}

std::string decided(const Verdict& verdict) {
  return verdict.decided() ? verdict.decided()->message : "open";
}

TEST(Verdict, ReportsCountAtOnceAndTheFirstStays) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.report(rank(1), -1, failure(1, "first"));
  EXPECT_EQ(decided(verdict), "first");
  verdict.report(rank(2), -1, failure(2, "second"));
  verdict.lost(rank(0), 0, failure(0, "third"));
  verdict.advance(Verdict::Duration(5));
  EXPECT_EQ(decided(verdict), "first");
}

TEST(Verdict, RanksAtOddsCountAtOnceUnlessOneWasLost) {
  Failure at_odds = failure(2, "mismatch");
  at_odds.code = ExitCode::kInternal;
  Verdict verdict(kGrace, kSuspicion);
  verdict.suspect(0, failure(1, "waits"));
  EXPECT_EQ(decided(verdict), "open");
  verdict.suspect(1, at_odds);
  EXPECT_EQ(decided(verdict), "mismatch");
  EXPECT_EQ(verdict.decided()->code, ExitCode::kInternal);

  Verdict after_loss(kGrace, kSuspicion);
  after_loss.lost(rank(3), 0, failure(3, "lost"));
  after_loss.suspect(1, at_odds);
  EXPECT_EQ(decided(after_loss), "open");
  after_loss.advance(Verdict::Duration(0.5));
  EXPECT_EQ(decided(after_loss), "lost");
}

TEST(Verdict, LossWaitsForAReportOfTheSame) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.lost(rank(1), 0, failure(1, "lost"));
  verdict.advance(Verdict::Duration(0.2));
  EXPECT_EQ(decided(verdict), "open");
  verdict.report(rank(1), 0, failure(1, "why"));
  EXPECT_EQ(decided(verdict), "why");
}

TEST(Verdict, LossWithoutAReportCountsAfterTheGrace) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.lost(rank(1), 0, failure(1, "lost"));
  // Consequences.
  verdict.lost(rank(2), 0, failure(2, "lost too"));
  verdict.report(rank(3), -1, failure(3, "cannot continue without 1"));
  verdict.silent(rank(4), failure(4, "silent"));
  verdict.suspect(5, failure(2, "waits for 2"));
  verdict.advance(Verdict::Duration(0.2));
  verdict.advance(Verdict::Duration(0.2));
  EXPECT_EQ(decided(verdict), "lost");
}

TEST(Verdict, TheAgentKnowsWhichOfItsRanksWasFirst) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.lost(rank(5), 1, failure(5, "lost"));
  verdict.report(rank(2), 0, failure(2, "of another node"));
  EXPECT_EQ(decided(verdict), "open");
  verdict.report(rank(4), 1, failure(4, "killed first"));
  EXPECT_EQ(decided(verdict), "killed first");
}

TEST(Verdict, RanksEndWithTheirAgent) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.lost(rank(4), 1, failure(4, "rank lost"));
  verdict.lost(agent(0), 0, failure(-1, "another agent lost"));
  verdict.lost(agent(1), 1, failure(-1, "agent lost"));
  verdict.advance(kGrace);
  EXPECT_EQ(decided(verdict), "agent lost");
}

TEST(Verdict, SuspicionsWaitLongerAndAreFollowed) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.suspect(0, failure(1, "0 waits for 1"));
  verdict.advance(Verdict::Duration(0.9));
  verdict.suspect(1, failure(2, "1 waits for 2"));
  verdict.suspect(3, failure(0, "3 waits for 0"));
  EXPECT_EQ(decided(verdict), "open");
  verdict.advance(Verdict::Duration(0.2));
  EXPECT_EQ(decided(verdict), "1 waits for 2");
}

TEST(Verdict, CirclesOfSuspicionEnd) {
  for (const int length : {1, 2, 3}) {
    Verdict verdict(kGrace, kSuspicion);
    for (int i = 0; i < length; ++i) verdict.suspect(i, failure((i + 1) % length, std::to_string(i)));
    verdict.advance(kSuspicion);
    EXPECT_EQ(decided(verdict), std::to_string(length - 1));
  }
  Verdict unknown(kGrace, kSuspicion);
  unknown.suspect(0, failure(-1, "the network"));
  unknown.advance(kSuspicion);
  EXPECT_EQ(decided(unknown), "the network");
}

TEST(Verdict, DirectEvidenceBeatsSuspicion) {
  Verdict verdict(kGrace, kSuspicion);
  verdict.suspect(0, failure(1, "0 waits for 1"));
  verdict.advance(Verdict::Duration(0.9));
  verdict.lost(rank(2), 0, failure(2, "lost"));
  verdict.advance(Verdict::Duration(0.2));
  EXPECT_EQ(decided(verdict), "open");
  verdict.advance(Verdict::Duration(0.2));
  EXPECT_EQ(decided(verdict), "lost");
}

}  // namespace
}  // namespace tessera
