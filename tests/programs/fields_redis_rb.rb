# What redis-rb gets from servers for lifetimes of fields, a line each: ruby fields_redis_rb.rb PORT …
require "json"
require "redis"

ARGV.each do |port|
  client = Redis.new(host: "127.0.0.1", port: Integer(port), timeout: 20)
  client.flushall
  client.hset("h", "a", "1", "b", "2", "c", "3")
  replies = [
    "HEXPIRE h 5000 FIELDS 2 a none", "HEXPIRE h 5000 NX FIELDS 1 a", "HPEXPIREAT h 4000000000001 FIELDS 1 b",
    "HTTL h FIELDS 2 a c", "HPEXPIRETIME h FIELDS 1 b", "HEXPIRETIME h FIELDS 1 b", "HPERSIST h FIELDS 2 a c",
    "HSETEX h FNX EX 7000 FIELDS 1 d 4", "HTTL h FIELDS 1 d", "HGETEX h PERSIST FIELDS 2 d none",
    "HTTL h FIELDS 1 d", "HGETDEL h FIELDS 2 d none", "HEXPIRE h 0 FIELDS 1 a", "HGETALL h",
  ].map { |line| client.call(*line.split) }
  replies << client.multi { |all| all.hset("h", "b", "5") && all.call("HTTL", "h", "FIELDS", 1, "b") }
  replies << (begin client.call("HTTL", "h") rescue $!.message end)
  puts JSON.generate(replies)
end
