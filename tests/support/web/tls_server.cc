#include "support/web/tls_server.h"

#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

constexpr long kHour = 3600;

// The value of a header, whose name is given in lower case with its colon.
std::string header_of(const std::string& head, const std::string& name) {
  const size_t at = lower_case(head).find("\r\n" + name);
  if (at == std::string::npos) return "";
  const size_t begin = head.find_first_not_of(' ', at + 2 + name.size());
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

void add_extension(X509* certificate, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  TESSERA_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestCertificate::TestCertificate()
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate_(X509_new(), X509_free) {
  X509* const x509 = certificate_.get();
  X509_set_version(x509, 2);
  static std::atomic<long> serial = 1;
  ASN1_INTEGER_set(X509_get_serialNumber(x509), serial++);
  X509_gmtime_adj(X509_getm_notBefore(x509), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(x509), kHour);
  X509_set_pubkey(x509, key_.get());
  const auto* name = reinterpret_cast<const unsigned char*>("tessera test");
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC, name, -1, -1, 0);
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  add_extension(x509, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(x509, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  TESSERA_CHECK(X509_sign(x509, key_.get(), EVP_sha256()) > 0);
}

std::string TestCertificate::pem() const {
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(memory.get(), certificate_.get());
  char* text = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &text);
  return {text, static_cast<size_t>(size)};
}

TlsServer::TlsServer(const TestCertificate& certificate, Handler handler)
    : handler_(handler ? std::move(handler) : [](const Request&) { return Reply(); }),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  use(certificate);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  TESSERA_CHECK(bind(listener_.get(), generic, size) == 0 && listen(listener_.get(), 16) == 0 &&
                getsockname(listener_.get(), generic, &size) == 0);
  port_ = ntohs(address.sin_port);
  const AsynchronousSignalsBlocked blocked;  // SIGPIPE: clients that have given up
  thread_ = std::thread([this] { accept(); });
}

TlsServer::~TlsServer() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    if (current_) shutdown(current_.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  thread_.join();
}

void TlsServer::use(const TestCertificate& certificate) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  TESSERA_CHECK(SSL_CTX_use_certificate(context.get(), certificate.certificate_.get()) == 1 &&
                SSL_CTX_use_PrivateKey(context.get(), certificate.key_.get()) == 1);
  const std::lock_guard lock(mutex_);
  context_ = context;
}

void TlsServer::accept() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::shared_ptr<SSL> connection;
    {
      const std::lock_guard lock(mutex_);
      if (is_ending_) return;
      if (!socket) continue;
      ++num_connections_;
      connection.reset(SSL_new(context_.get()), SSL_free);
      SSL_set_fd(connection.get(), socket.get());
      current_ = std::move(socket);
    }
    if (SSL_accept(connection.get()) == 1) serve(connection.get());
    const std::lock_guard lock(mutex_);
    current_.reset();
  }
}

void TlsServer::serve(SSL* connection) {
  std::string data;
  const auto read_more = [&] {
    char piece[4096];
    const int count = SSL_read(connection, piece, sizeof piece);
    if (count > 0) data.append(piece, static_cast<size_t>(count));
    return count > 0;
  };
  while (data.find("\r\n\r\n") == std::string::npos) {
    if (!read_more()) return;
  }
  const size_t begin = data.find("\r\n\r\n") + 4;
  const std::string head = data.substr(0, begin);
  const size_t size = std::stoul("0" + header_of(head, "content-length:"));
  while (data.size() < begin + size) {
    if (!read_more()) return;
  }
  const Request request = {head.substr(0, head.find("\r\n")), header_of(head, "authorization:"),
                           data.substr(begin, size)};
  const Reply reply = handler_(request);
  {
    std::unique_lock lock(mutex_);
    requests_.push_back(request);
    changed_.notify_all();
    changed_.wait_for(lock, reply.delay, [this] { return is_ending_; });
  }
  const std::string answer = fmt::format("HTTP/1.1 {} Status\r\nContent-Length: {}\r\n\r\n{}", reply.status,
                                         reply.body.size(), reply.body);
  SSL_write(connection, answer.data(), static_cast<int>(answer.size()));
  SSL_shutdown(connection);
}

std::vector<TlsServer::Request> TlsServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

bool TlsServer::wait_for_requests(size_t count, std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return requests_.size() >= count; });
}

}  // namespace tessera
