typedef int mt_nothing_yet_crc32c;
