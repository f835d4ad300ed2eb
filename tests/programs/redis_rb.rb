# What a program of redis-rb gets from the server at PORT, a line each: ruby redis_rb.rb PORT
require "digest"
require "json"
require "redis"

Redis.sadd_returns_boolean = false
PORT = Integer(ARGV[0])

def open(**more) = Redis.new(host: "127.0.0.1", port: PORT, timeout: 20, **more)
def show(name, value) = puts("#{name} #{JSON.generate(value)}")
def digest(value) = Digest::SHA1.hexdigest(JSON.generate(value))

def refused
  yield
  "taken"
rescue Redis::BaseError => error
  error.message
end

client = open
client.flushall
show("values", [client.set("plain", "ü\r\n$3"), client.get("plain"), client.get("none"), client.incr("n"),
                client.set("nx", "a", nx: true), client.set("nx", "b", nx: true), client.mget("plain", "none", "n")])
large = "a\r\n+OK\r\n" * 300_000
client.set("large", large)
show("large", [client.get("large") == large, client.strlen("large")])
show("collections", [
  client.hset("h", "a", "1", "b", "", "c", "3"), client.hgetall("h"), client.hmget("h", "a", "none"),
  client.rpush("l", %w[x y x]), client.lrange("l", 0, -1), client.lrem("l", 0, "x"),
  client.zadd("z", [[1.5, "m"], [2, "n"]]), client.zrange("z", 0, -1, with_scores: true), client.zscore("z", "o"),
  client.sadd("s", %w[b a]), client.smembers("s").sort, client.smismember("s", "a", "c"),
])
show("refusals", [refused { client.lpush("s", "x") }, refused { client.call("NOSUCH", "a") },
                  refused { client.get("s") },
                  refused { client.call("EXPIREMEMBERS", "s") }, refused { client.incr("plain") }])

show("pipeline", digest(client.pipelined { |pipe|
  2000.times { |n| pipe.set("p#{n % 50}", n); pipe.sadd("ps", n % 90); pipe.hincrby("ph", n % 7, n); pipe.ping }
}))
show("pipeline refused", refused { client.pipelined { |pipe| pipe.set("a", 1); pipe.lpush("s", 1); pipe.set("b", 2) } })
show("transaction", client.multi { |tx| tx.sadd("t", 1); tx.sadd("t", 1); tx.scard("t") })
client.watch("watched") do
  open.set("watched", "changed")
  show("watch", client.multi { |tx| tx.get("watched") })
end
show("no watch", client.multi { |tx| tx.get("watched") })

many = 12.times.map { |who|
  Thread.new {
    one = open
    200.times.map { |n|
      key = "many#{who}:#{n % 9}"
      [one.set(key, n), one.get(key), one.incrby("#{key}:n", n), one.sadd("#{key}:s", n), one.mget(key, "#{key}:n")]
    }
  }
}.map(&:value)
show("many", digest(many))

script = "return {redis.call('INCR', KEYS[1]), ARGV[1]}"
sha = client.script(:load, script)
show("script", [client.evalsha(sha, ["counted"], ["a"]), client.eval(script, ["counted"], ["b"])])
client.script(:flush)
show("script again", [refused { client.evalsha(sha, ["counted"], ["c"]) }, client.eval(script, ["counted"], ["d"])])

speaker = Thread.new { speaks = open; sleep(0.002) while speaks.publish("news", "hello").zero? }
heard = []
subscriber = open
subscriber.subscribe("news") do |on|
  on.message { |channel, text| heard << [channel, text]; subscriber.unsubscribe("news") }
end
speaker.join
show("heard", [heard, subscriber.get("plain")])

giver = Thread.new {
  gives = open
  sleep(0.002) until gives.client(:list).any? { |one| one["cmd"] == "blpop" }
  gives.rpush("jobs", %w[first second])
}
waiter = open
show("blocking", [waiter.blpop("jobs", timeout: 20), waiter.blpop("jobs", timeout: 1),
                  waiter.brpop("jobs", timeout: 0.05)])
giver.join

show("scan", client.scan_each(match: "p*", count: 7).to_a.uniq.sort)
other = open(db: 3)
show("database", [other.set("plain", 3), other.dbsize, client.get("plain")])
client.xgroup(:create, "stream", "group", "$", mkstream: true)
client.xadd("stream", { field: "value" }, id: "1-1")
show("stream", client.xreadgroup("group", "me", "stream", ">", count: 1))

client.call("CLIENT", "KILL", "ID", other.call("CLIENT", "ID"))
show("again", [other.get("plain"), other.dbsize])

# Members with deadlines, if the server has them.
if refused { client.call("EXPIREMEMBER", "none", "m", 1) } == "taken"
  client.sadd("cart", %w[apple pear plum])
  set = client.pipelined { |pipe|
    pipe.call("PEXPIREMEMBER", "cart", "apple", 60)
    pipe.call("EXPIREMEMBER", "cart", "pear", 100)
    pipe.call("TTL", "cart", "pear")
    pipe.call("PERSIST", "cart", "pear")
    pipe.call("PTTL", "cart", "pear")
  }
  sleep(0.002) while client.sismember("cart", "apple")
  show("members", [set, client.smembers("cart").sort])
end
