typedef int mt_nothing_yet_runlog;
