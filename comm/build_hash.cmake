# Writes OUTPUT, a source file that defines the hash of the files that LIST names, one per line. The hash
# depends on their contents and their names relative to TOP, not on their times.
file(STRINGS "${LIST}" sources ENCODING UTF-8)
set(hashes "")
foreach(source IN LISTS sources)
  file(SHA256 "${source}" hash)
  file(RELATIVE_PATH name "${TOP}" "${source}")
  string(APPEND hashes "${name} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE "${OUTPUT}" "#include \"comm/job/build_id.h\"\n\nconst char* const lockstep::detail::kSourceHash = \"${VERSION}-${hash}\";\n")
