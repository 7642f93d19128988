import asyncio, sys, uvloop
from pathlib import Path
from bench.settings import Settings
from bench.platform import platform
from bench import flows
from vkgateway.cli.progress import Progress
async def main():
    s=Settings(data_dir=Path("/tmp/bench-p"),program_dirs=(Path("/work/bin"),),keep=True)
    n=int(sys.argv[1]); t=int(sys.argv[2])
    with Progress() as r:
        async with platform(s,nodes=30,report=r) as p:
            await p.onboard(t)
            await p.until_schedulable(t)
            for token in (False,True):
                f=await flows.through_gateway(p,pods=n,tenants=t,token=token)
                print(f, f.throughput, f.cpu_ms("gateway"))
uvloop.run(main())
