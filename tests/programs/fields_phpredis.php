<?php
// What phpredis gets from servers for lifetimes of fields, a line each: php fields_phpredis.php PORT …
foreach (array_slice($argv, 1) as $port) {
    $client = new Redis();
    $client->connect('127.0.0.1', (int) $port, 20);
    $client->flushAll();
    $client->hMSet('h', ['a' => '1', 'b' => '2', 'c' => '3']);
    $replies = [];
    foreach ([
        'HEXPIRE h 5000 FIELDS 2 a none', 'HEXPIRE h 5000 NX FIELDS 1 a', 'HPEXPIREAT h 4000000000001 FIELDS 1 b',
        'HTTL h FIELDS 2 a c', 'HPEXPIRETIME h FIELDS 1 b', 'HEXPIRETIME h FIELDS 1 b', 'HPERSIST h FIELDS 2 a c',
        'HSETEX h FNX EX 7000 FIELDS 1 d 4', 'HTTL h FIELDS 1 d', 'HGETEX h PERSIST FIELDS 2 d none',
        'HTTL h FIELDS 1 d', 'HGETDEL h FIELDS 2 d none', 'HEXPIRE h 0 FIELDS 1 a', 'HGETALL h',
    ] as $line) {
        $replies[] = $client->rawCommand(...explode(' ', $line));
    }
    $client->multi();
    $client->hSet('h', 'b', '5');
    $client->rawCommand('HTTL', 'h', 'FIELDS', 1, 'b');
    $replies[] = $client->exec();
    $replies[] = [$client->rawCommand('HTTL', 'h'), $client->getLastError()];
    echo json_encode($replies), "\n";
}
