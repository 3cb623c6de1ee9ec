/* Folders that a run makes. */
#ifndef MT_FOLDER_H
#define MT_FOLDER_H

/* Makes a folder and its parents, those that are not there. 0, or an errno and in *failed the one that could not be made (the
 * caller frees with mt_free); ENOTDIR means that something else is in its place. Local. */
int mt_folder_make(const char *path, char **failed);

#endif
