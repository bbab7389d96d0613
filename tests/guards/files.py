"""Files: durable, whole, and in the right place."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "storage/a-file-is-synced",
        "files/storage.py",
        ("                _make_durable(self._fd)\n            finally:"),
        instead=("                pass\n            finally:"),
        why="A file is durable before anything names it (I1).",
        tests=("files/test_storage.py::test_a_file_system_without_a_full_sync_gets_an_ordinary_one_I1",),
    ),
    Guard(
        "storage/the-folder-of-a-file-is-synced",
        "files/storage.py",
        ("                self._close()\n            _make_folder_durable(self._path.parent)\n"),
        instead=("                self._close()\n"),
        why="A file is found after a power cut only if its folder is durable (I1).",
        tests=("files/test_storage.py::test_long_files_are_synced_on_the_way_and_at_the_end_I1",),
    ),
    Guard(
        "storage/a-new-folder-is-synced",
        "files/storage.py",
        ("            folder.mkdir(exist_ok=True)\n            _make_folder_durable(folder.parent)\n"),
        instead=("            folder.mkdir(exist_ok=True)\n"),
        why="A file is durable only if every folder above it is (I1).",
        tests=("files/test_storage.py::test_file_and_folders_are_synced_before_close_returns_I1",),
    ),
    Guard(
        "storage/a-folder-that-was-found-is-synced",
        "files/storage.py",
        ("            self._sync_found(folder.parent)\n"),
        instead=("            pass\n"),
        why="A folder that was found may have been made by a process that never synced it (I1).",
        tests=("files/test_storage.py::test_a_folder_that_another_process_made_and_did_not_sync_is_synced_I1",),
    ),
    Guard(
        "storage/an-early-sync-that-failed",
        "files/storage.py",
        ("                if self._failure is not None:\n                    raise self._failure\n"),
        instead="",
        why="The kernel reports a lost page only once, to the first sync (I1).",
        tests=("files/test_storage.py::test_an_error_of_a_sync_in_the_background_fails_the_write_I1",),
    ),
    Guard(
        "storage/files-are-never-overwritten",
        "files/storage.py",
        " | os.O_EXCL",
        instead="",
        why="A file never changes once it was written (I1).",
        tests=("files/test_storage.py::test_a_file_is_never_overwritten",),
    ),
    Guard(
        "storage/what-was-written-is-read-back",
        "files/storage.py",
        "if self.read(path, 0, len(data) + 1).to_pybytes() != data:",
        instead="if False:",
        why="A storage that does not keep what is written is not used (I1).",
        tests=("files/test_storage.py::test_a_storage_that_does_not_keep_what_is_written_is_refused_I1",),
    ),
    Guard(
        "storage/a-marker-is-there-whole",
        "files/storage.py",
        ("            _make_folder_durable(full.parent)\n"),
        instead="",
        why="The marker file survives a power cut, or the root would not be recognised (I16).",
        tests=("files/test_storage.py::test_a_file_that_is_replaced_is_durable_under_its_own_name_I16",),
    ),
    Guard(
        "storage/nothing-is-made-above-a-topic",
        "files/storage.py",
        (
            "            if not self.has_folder(top):\n"
            "                raise self.not_there(top)\n"
            "            self._ensure_folder(folder)"
        ),
        instead="            self._ensure_folder(folder)",
        why="Where a disk is not mounted no folder is made, or the log would be split (I1).",
        tests=("files/test_storage.py::test_a_writer_makes_neither_the_root_nor_what_is_right_below_it_I1",),
    ),
    Guard(
        "storage/the-marker-is-looked-for",
        "files/storage.py",
        "if self.marker and not self._is_marked():",
        instead="if False:",
        why="An empty place is never taken for the namespace's root (I1).",
        tests=("log/test_folders.py::test_a_topic_without_records_does_not_bring_the_root_back_I1",),
    ),
    Guard(
        "files/the-checksum-of-a-side-file",
        "files/topicfiles.py",
        "if data.size != ref.length or xxhash.xxh3_64_intdigest(data) != ref.tail_hash:",
        instead="if data.size != ref.length:",
        why="A damaged file is named and not read (I1).",
        tests=("files/test_side_files.py::test_a_damaged_index_or_list_is_named_and_not_read",),
    ),
    Guard(
        "files/the-checksum-of-a-long-value",
        "files/blobs.py",
        "if len(data) != file.length or xxhash.xxh3_64_intdigest(data) != file.tail_hash:",
        instead="if len(data) != file.length:",
        why="A damaged file is named and not read (I11).",
        tests=("files/test_side_files.py::test_a_damaged_value_of_a_node_is_named_and_not_read",),
    ),
    Guard(
        "files/what-may-still-be-named-is-not-swept",
        "files/blobs.py",
        "if parsed[0] <= version or (before",
        instead="if True or (before",
        why="A file for a later version may be named by a change that is under way (I12).",
        tests=("tokens/test_tokens.py::test_a_file_that_may_still_be_named_is_not_swept_I12",),
    ),
    Guard(
        "files/what-is-named-is-not-swept",
        "files/blobs.py",
        "if parsed is None or (named is not None and parsed[1] == named.uid):",
        instead="if parsed is None:",
        why="The file that the node names stays (I12).",
        tests=("tokens/test_tokens.py::test_a_file_that_may_still_be_named_is_not_swept_I12",),
    ),
    Guard(
        "files/the-checksum-of-a-tail",
        "files/entryfile.py",
        "if xxhash.xxh3_64_intdigest(self._source.view(start, self._file.tail_length)) != self._file.tail_hash:",
        instead="if False:",
        why="The checksums of the rows are in the tail, and the commit has that one's (I1).",
        tests=("files/test_entryfile.py::test_a_flipped_bit_is_found_or_does_not_matter",),
    ),
    Guard(
        "files/the-checksum-of-rows",
        "files/entryfile.py",
        "if xxhash.xxh3_64_intdigest(self._source.view(offset, length)) != expected:",
        instead="if False:",
        why="Damaged rows are named and not read (I1).",
        tests=("files/test_entryfile.py::test_a_column_read_reads_and_verifies_only_its_columns",),
    ),
    Guard(
        "files/the-length-of-a-file",
        "files/entrysource.py",
        ("    if size != file.length:\n"),
        instead=("    if False:\n"),
        why="To touch a page past the end of a shortened file would kill the process (I16).",
        tests=("files/test_entryfile.py::test_a_truncated_file_is_named",),
    ),
]
