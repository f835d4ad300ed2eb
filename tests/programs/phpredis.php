<?php
// What a program of phpredis gets from the server at PORT, a line each: php phpredis.php PORT
$port = (int) $argv[1];

function open(bool $persistent = false): Redis {
    global $port;
    $client = new Redis();
    $persistent ? $client->pconnect('127.0.0.1', $port, 20, 'kept') : $client->connect('127.0.0.1', $port, 20);
    return $client;
}

function show(string $name, mixed $value): void {
    echo $name, ' ', json_encode($value, JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR), "\n";
}

/** What a refused request says: false is what it gives, and the words are kept aside. */
function refused(Redis $client, callable $request): mixed {
    $client->clearLastError();
    $given = $request();
    return [$given, $client->getLastError()];
}

$client = open();
$client->flushAll();
$client->script('flush');
show('values', [
    $client->set('plain', "ü\r\n$3"), $client->get('plain'), $client->get('none'), $client->incr('n'),
    $client->set('nx', 'a', ['nx']), $client->set('nx', 'b', ['nx']), $client->mget(['plain', 'none', 'n']),
]);
$large = str_repeat("a\r\n+OK\r\n", 300000);
$client->set('large', $large);
show('large', [$client->get('large') === $large, $client->strlen('large')]);
$sorted = function (array $members): array { sort($members); return $members; };
show('collections', [
    $client->hMSet('h', ['a' => '1', 'b' => '', 'c' => '3']), $client->hGetAll('h'), $client->hMGet('h', ['a', 'none']),
    $client->rPush('l', 'x', 'y', 'x'), $client->lRange('l', 0, -1), $client->lRem('l', 'x', 0),
    $client->zAdd('z', 1.5, 'm', 2, 'n'), $client->zRange('z', 0, -1, true), $client->zScore('z', 'o'),
    $client->sAdd('s', 'b', 'a'), $sorted($client->sMembers('s')), $client->sMisMember('s', 'a', 'c'),
]);
show('refusals', [
    refused($client, fn () => $client->lPush('s', 'x')), refused($client, fn () => $client->rawCommand('NOSUCH', 'a')),
    refused($client, fn () => $client->get('s')), refused($client, fn () => $client->incr('plain')),
    refused($client, fn () => $client->rawCommand('EXPIREMEMBERS', 's')),
]);

$client->pipeline();
for ($number = 0; $number < 2000; $number++) {
    $client->set('p' . $number % 50, $number)->sAdd('ps', $number % 90)->lPush('s', 'wrong');
    $client->hIncrBy('ph', $number % 7, $number);
}
show('pipeline', sha1(json_encode($client->exec())));
show('transaction', $client->multi()->sAdd('t', 1)->sAdd('t', 1)->lPush('t', 1)->sCard('t')->exec());
$client->watch('watched');
open()->set('watched', 'changed');
show('watch', [$client->multi()->get('watched')->exec(), $client->multi()->get('watched')->exec()]);

$script = "return {redis.call('INCR', KEYS[1]), ARGV[1]}";
$client->clearLastError();
show('script', [$client->evalSha(sha1($script), ['counted', 'a'], 1), $client->getLastError()]);
show('script again', [
    $client->eval($script, ['counted', 'b'], 1), $client->evalSha(sha1($script), ['counted', 'c'], 1),
]);

$child = pcntl_fork();
if ($child === 0) {
    $speaker = open();
    while ($speaker->publish('news', 'hello') < 2) usleep(2000);
    exit(0);
}
$subscriber = open();
$heard = [];
$subscriber->setOption(Redis::OPT_READ_TIMEOUT, 20);
try {
    $subscriber->psubscribe(['n*', 'new?'], function ($one, $pattern, $channel, $text) use (&$heard) {
        $heard[] = [$pattern, $channel, $text];
        if (count($heard) === 2) $one->close();
    });
} catch (RedisException) {
    // It reads on from a connection that it has closed itself.
}
show('heard', $heard);
pcntl_waitpid($child, $status);

$child = pcntl_fork();
if ($child === 0) {
    $giver = open();
    while (!str_contains(json_encode($giver->client('list')), '"blpop"')) usleep(2000);
    $giver->rPush('jobs', 'first', 'second');
    exit(0);
}
$waiter = open();
$waiter->setOption(Redis::OPT_READ_TIMEOUT, -1);
show('blocking', [$waiter->blPop('jobs', 20), $waiter->blPop('jobs', 1), $waiter->brPop('jobs', 1)]);
pcntl_waitpid($child, $status);

$client->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
$found = [];
for ($cursor = null; ($keys = $client->scan($cursor, 'p*', 7)) !== false;) array_push($found, ...$keys);
sort($found);
show('scan', array_values(array_unique($found)));
$other = open();
show('database', [$other->select(3), $other->set('plain', 3), $other->dbSize(), $client->get('plain')]);
show('serialized', [
    $client->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP), $client->set('object', ['a' => [1, 2.5, null]]),
    $client->get('object'), $client->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_NONE), $client->get('object'),
]);
$client->rawCommand('XGROUP', 'CREATE', 'stream', 'group', '$', 'MKSTREAM');
$client->xAdd('stream', '1-1', ['field' => 'value']);
show('stream', $client->xReadGroup('group', 'me', ['stream' => '>'], 1));

// As a web server's processes do it: a connection that is kept, and found closed.
show('kept', [open(true)->set('kept', 1), open(true)->get('kept')]);
$client->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
for ($again = null; $again === null;) {
    try { $again = open(true)->get('kept'); } catch (RedisException) { usleep(2000); }
}
show('again', $again);

// Members with deadlines, if the server has them.
$client->clearLastError();
if ($client->rawCommand('EXPIREMEMBER', 'none', 'm', 1) !== false) {
    $client->sAdd('cart', 'apple', 'pear', 'plum');
    $client->pipeline();
    $client->rawCommand('PEXPIREMEMBER', 'cart', 'apple', 60);
    $client->rawCommand('EXPIREMEMBER', 'cart', 'pear', 100);
    $client->rawCommand('TTL', 'cart', 'pear');
    $client->rawCommand('PERSIST', 'cart', 'pear');
    $client->rawCommand('PTTL', 'cart', 'pear');
    $set = $client->exec();
    while ($client->sIsMember('cart', 'apple')) usleep(2000);
    show('members', [$set, $sorted($client->sMembers('cart'))]);
}
