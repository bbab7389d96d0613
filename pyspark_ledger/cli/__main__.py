from pyspark_ledger.cli import main

main(prog_name="pyspark-ledger")
