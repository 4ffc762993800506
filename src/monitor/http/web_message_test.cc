#include "monitor/http/web_message.h"

#include <gmock/gmock.h>

#include "monitor/http/web_access.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

TEST(WebMessage, TargetsAreSplitIntoPathAndDecodedFields) {
  const WebRequest request = parse_target("/a/b?x=1&run=a%20b+c%2F%3d&empty=&flag&x=2&=v");
  EXPECT_EQ(request.path, "/a/b");
  EXPECT_THAT(request.query, ElementsAre(Pair("", "v"), Pair("empty", ""), Pair("flag", ""),
                                         Pair("run", "a b c/="), Pair("x", "1")));
}

TEST(WebMessage, MalformedEscapesStayAsTheyAre) {
  EXPECT_EQ(parse_target("/?a=%").query.at("a"), "%");
  EXPECT_EQ(parse_target("/?a=%4").query.at("a"), "%4");
  EXPECT_EQ(parse_target("/?a=%zz%4g%-1").query.at("a"), "%zz%4g%-1");
  EXPECT_EQ(parse_target("").path, "");
  EXPECT_EQ(parse_target("/?&&").query.size(), 1U);
}

TEST(WebMessage, EventsKeepTheLinesOfTheirData) {
  EXPECT_EQ(event_text({.id = 7, .type = "step", .data = "{}"}), "id: 7\nevent: step\ndata: {}\n\n");
  EXPECT_EQ(event_text({.id = 1, .type = "", .data = "a\nb\r\nc\rd\n"}),
            "id: 1\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
}

TEST(WebMessage, HeadsCarryTheSecurityHeaders) {
  const std::string head = response_head(text_response(200, "hello"), true);
  EXPECT_THAT(head, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nContent-Length: 5\r\n"));
  EXPECT_THAT(head, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(head, HasSubstr("\r\nX-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nReferrer-Policy: no-referrer\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  WebResponse stream;
  stream.channel = "c";
  EXPECT_THAT(response_head(stream, false), Not(HasSubstr("Content-Length")));
}

TEST(WebAccess, LoopbackServersKnowTheirNames) {
  const WebAccess local("", true, 9404);
  for (const char* host :
       {"localhost", "LocalHost:9404", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:1", "[::1]", "[::1]:9404"}) {
    EXPECT_TRUE(local.is_expected_host(host)) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9404",
                           "localhost:80x", "::1", "[::1", "127", "10.0.0.1"}) {
    EXPECT_FALSE(local.is_expected_host(host)) << host;
  }
  EXPECT_TRUE(WebAccess("0123456789abcdef", false, 1).is_expected_host("worker-1:9404"));
}

TEST(WebAccess, TheTokenComesAsBearerOrCookie) {
  const WebAccess access("0123456789abcdef", false, 9404);
  EXPECT_TRUE(access.is_allowed("Bearer 0123456789abcdef", ""));
  EXPECT_TRUE(access.is_allowed("bearer 0123456789abcdef", ""));
  EXPECT_TRUE(access.is_allowed("", "a=b; tessera_9404=0123456789abcdef; c"));
  EXPECT_THAT(access.cookie(), HasSubstr("tessera_9404=0123456789abcdef; Path=/; HttpOnly; SameSite=Strict"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcdef ",
                            "Basic 0123456789abcdef", "0123456789abcdef"}) {
    EXPECT_FALSE(access.is_allowed(wrong, "")) << wrong;
  }
  for (const char* wrong : {";", "; ;", "=", "tessera_9404", "tessera_9404=", "tessera_9405=0123456789abcdef",
                            "xtessera_9404=0123456789abcdef"}) {
    EXPECT_FALSE(access.is_allowed("", wrong)) << wrong;
  }
  EXPECT_TRUE(WebAccess("", true, 1).is_allowed("", ""));
  EXPECT_FALSE(WebAccess("", true, 1).is_token(""));
}

}  // namespace
}  // namespace tessera
