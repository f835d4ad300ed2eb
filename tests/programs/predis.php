<?php
// What a program of Predis gets from the server at PORT, a line each: php predis.php PORT
require 'Predis/Autoloader.php';
Predis\Autoloader::register();
error_reporting(E_ALL & ~E_DEPRECATED);

$port = (int) $argv[1];

/** EXPIREMEMBER key member delay …, for pipelines and transactions too. */
class ExpireMember extends Predis\Command\Command {
    public function getId() { return 'EXPIREMEMBER'; }
}

function open(array $more = []): Predis\Client {
    global $port;
    $client = new Predis\Client(['host' => '127.0.0.1', 'port' => $port, ...$more]);
    $client->getProfile()->defineCommand('expiremember', 'ExpireMember');
    return $client;
}

function show(string $name, mixed $value): void {
    echo $name, ' ', json_encode($value, JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR), "\n";
}

function refused(callable $request): string {
    try { $request(); return 'taken'; } catch (Predis\Response\ServerException $error) { return $error->getMessage(); }
}

function sorted(array $members): array { sort($members); return $members; }

$client = open();
$client->flushall();
show('values', [
    (string) $client->set('plain', "ü\r\n$3"), $client->get('plain'), $client->get('none'), $client->incr('n'),
    (string) $client->set('nx', 'a', 'NX'), $client->set('nx', 'b', 'NX'), $client->mget('plain', 'none', 'n'),
]);
$large = str_repeat("a\r\n+OK\r\n", 300000);
$client->set('large', $large);
show('large', [$client->get('large') === $large, $client->strlen('large')]);
show('collections', [
    (string) $client->hmset('h', ['a' => '1', 'b' => '', 'c' => '3']), $client->hgetall('h'),
    $client->hmget('h', 'a', 'none'),
    $client->rpush('l', 'x', 'y', 'x'), $client->lrange('l', 0, -1), $client->lrem('l', 0, 'x'),
    $client->zadd('z', ['m' => 1.5, 'n' => 2]), $client->zrange('z', 0, -1, 'WITHSCORES'), $client->zscore('z', 'o'),
    $client->sadd('s', 'b', 'a'), sorted($client->smembers('s')),
]);
show('refusals', [
    refused(fn () => $client->lpush('s', 'x')), refused(fn () => $client->get('s')),
    refused(fn () => $client->incr('plain')),
    $client->executeRaw(['NOSUCH', 'a'], $error), $error, $client->executeRaw(['EXPIREMEMBERS', 's']),
]);
show('pipeline', sha1(json_encode($client->pipeline(function ($pipe) {
    for ($n = 0; $n < 2000; $n++) {
        $pipe->sadd('ps', $n % 90);
        $pipe->hincrby('ph', $n % 7, $n);
        $pipe->get('p' . $n % 50);
    }
}))));
show('transaction', $client->transaction()->sadd('t', 1)->sadd('t', 1)->scard('t')->execute());
$client->watch('watched');
open()->set('watched', 'changed');
show('watch', $client->executeRaw(['MULTI']) && $client->executeRaw(['EXEC']));
$script = "return {redis.call('INCR', KEYS[1]), ARGV[1]}";
show('script', [
    refused(fn () => $client->evalsha(sha1('return 1'), 1, 'counted', 'a')), $client->eval($script, 1, 'counted', 'b'),
]);
show('blocking', [
    $client->rpush('jobs', 'first', 'second'), $client->blpop('jobs', 1), $client->blpop('jobs', 1),
    $client->brpop('jobs', 1),
]);
$heard = [];
$subscriber = open(['read_write_timeout' => 20])->pubSubLoop();
$subscriber->subscribe('news');
foreach ($subscriber as $message) {
    $heard[] = [$message->kind, $message->channel, $message->payload];
    if ($message->kind === 'subscribe') $client->publish('news', 'hello');
    if ($message->kind === 'message') $subscriber->unsubscribe();
}
show('heard', $heard);
show('scan', sorted(array_unique(iterator_to_array(new Predis\Collection\Iterator\Keyspace($client, 'p*', 7), false))));
$other = open(['database' => 3]);
show('database', [(string) $other->set('plain', 3), $other->dbsize(), $client->get('plain')]);

// Members with deadlines, if the server has them.
$client->executeRaw(['EXPIREMEMBER', 'none', 'm', 1], $error);
if (!$error) {
    $client->sadd('cart', 'apple', 'pear', 'plum');
    $set = $client->transaction(function ($tx) {
        $tx->expiremember('cart', 'apple', 60, 'ms');
        $tx->expiremember('cart', 'pear', 100);
    });
    $set[] = $client->executeRaw(['TTL', 'cart', 'pear']);
    $set[] = $client->executeRaw(['PERSIST', 'cart', 'pear']);
    $set[] = $client->executeRaw(['PTTL', 'cart', 'pear']);
    while ($client->sismember('cart', 'apple')) usleep(2000);
    show('members', [$set, sorted($client->smembers('cart'))]);
}
