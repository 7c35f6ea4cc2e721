// Prints names, pixel size, level shapes and a few pixels of images, as Viv reads them over HTTP.
// node read_with_viv.mjs NODE_MODULES FOLDER OFFSETS_JSON IMAGE...
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, folder, offsetsFile, ...images] = process.argv.slice(2);
const { resolve } = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(resolve(name)));
globalThis.DOMParser = (await load('@xmldom/xmldom')).DOMParser;
const { loadOmeTiff, loadOmeZarr } = await load('@vivjs/loaders');

let whole = 0;
const server = http.createServer((request, response) => {
  try {
    const body = readFileSync(folder + decodeURIComponent(request.url));
    const range = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? '');
    if (!range) {
      whole += request.url.endsWith('.tif');
      return response.end(body);
    }
    const [first, last] = [Number(range[1]), Math.min(Number(range[2]), body.length - 1)];
    response.writeHead(206, { 'Content-Range': `bytes ${first}-${last}/${body.length}` });
    response.end(body.subarray(first, last + 1));
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));

async function read(name) {
  const url = `http://127.0.0.1:${server.address().port}/${name}`;
  if (name.endsWith('.tif')) {
    const offsets = JSON.parse(readFileSync(offsetsFile, 'utf-8'));
    const { data, metadata } = await loadOmeTiff(url, { offsets });
    const { Channels, PhysicalSizeY, PhysicalSizeX } = metadata.Pixels;
    return [data, Channels.map((channel) => channel.Name), [PhysicalSizeY, PhysicalSizeX]];
  }
  const { data, metadata } = await loadOmeZarr(url, { type: 'multiscales' });
  const scale = metadata.multiscales[0].datasets[0].coordinateTransformations[0].scale;
  return [data, metadata.omero.channels.map((channel) => channel.label), scale.slice(1)];
}

for (const image of images) {
  const [levels, names, um] = await read(image);
  const pixels = [];
  for (const level of levels) {
    const planes = [];
    for (let c = 0; c < names.length; c++) {
      const { data, width } = await level.getTile({ x: 0, y: 0, selection: level.shape.length > 3 ? { c, z: 0, t: 0 } : { c } });
      planes.push([100, 101].map((y) => [...data.slice(y * width + 200, y * width + 203)]));
    }
    pixels.push(planes);
  }
  const shapes = levels.map((level) => level.shape.slice(-3));
  console.log(JSON.stringify([names, um, shapes, pixels]));
}
if (whole) throw new Error('the TIFF was read whole');
process.exit(0);
